#!/bin/sh
# Install Debian's Chromium where it is missing, for the tests of the report's page; as root.
set -eu
if ! command -v chromium >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
fi
