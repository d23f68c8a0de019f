"""Training of looped language models; of bayesloop it knows only `schema` and `architecture`."""
