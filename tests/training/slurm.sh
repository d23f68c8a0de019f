#!/bin/sh
# A SLURM cluster of one node, for tests, as root on Debian:
#   slurm.sh install         packages
#   slurm.sh start FOLDER    configuration, state and logs go to FOLDER; prints the value for SLURM_CONF
#   slurm.sh stop FOLDER
set -eu

case "${1:-}" in
install)
    if ! command -v slurmctld slurmd munged sbatch >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge
    fi
    ;;
start)
    folder=$(readlink -f "$2")
    host=$(hostname)
    mkdir -p "$folder/state" "$folder/spool" "$folder/munge"
    # linuxproc needs no cgroups, ReturnToService=2 brings a restarted node back by itself, cred_expire is the time a
    # requeued job is held back
    cat >"$folder/slurm.conf" <<CONF
ClusterName=tests
SlurmctldHost=$host
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmUser=root
SlurmdUser=root
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
KillWait=3
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(getconf _NPROCESSORS_ONLN)
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    head -c 1024 /dev/urandom >"$folder/munge/key"
    chmod 600 "$folder/munge/key"
    chmod 755 "$folder/munge"
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld -c
    slurmd -c
    for _ in $(seq 60); do
        if sinfo --noheader --format %t 2>/dev/null | grep -q idle; then
            echo "$SLURM_CONF"
            exit 0
        fi
        sleep 0.5
    done
    echo "SLURM did not become ready in 30 s:" >&2
    tail -n 20 "$folder/slurmctld.log" "$folder/slurmd.log" >&2
    exit 1
    ;;
stop)
    SLURM_CONF="$2/slurm.conf" scancel --user "$(id -un)" || true
    for _ in $(seq 20); do
        [ -n "$(SLURM_CONF="$2/slurm.conf" squeue --noheader 2>/dev/null)" ] || break
        sleep 0.5
    done
    for file in "$2/slurmd.pid" "$2/slurmctld.pid" "$2/munge/pid"; do
        if [ -s "$file" ]; then kill "$(cat "$file")" 2>/dev/null || true; fi
    done
    ;;
*)
    sed -n '2,5p' "$0"
    exit 2
    ;;
esac
