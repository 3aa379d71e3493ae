#!/usr/bin/env bash
# Run a command and its child processes with the CPU time of one core, to simulate a machine of half the speed.
# The limited cgroup is the root of the command's cgroup namespace, so the local cluster's nodes stay inside it.
set -euo pipefail
root=/sys/fs/cgroup
if [[ -e $root/cgroup.controllers ]]; then
  group=$root/trainingjob-one-core
  mkdir -p "$group"
  echo "100000 100000" >"$group/cpu.max"
  remount="umount $root && mount -t cgroup2 cgroup $root"
else
  group=$root/cpu/trainingjob-one-core
  mkdir -p "$group"
  echo 100000 >"$group/cpu.cfs_period_us"
  echo 100000 >"$group/cpu.cfs_quota_us"
  remount="umount $root/cpu && mount -t cgroup -o cpu cgroup $root/cpu"
fi
echo $$ >"$group/cgroup.procs"
exec unshare --mount --cgroup --propagation private bash -c "$remount && exec \"\$@\"" one-core "$@"
