#!/usr/bin/env bash
# Makes one mount of each kind below the directory $1, says of each how it went (NAME<TAB>ok, or the tool's message),
# and keeps them until its input ends. Run in a mount namespace of its own, so that nothing is left behind.
set -uo pipefail
cd "$1" || exit 1

try() {
    local name="$1" said
    shift
    mkdir -p "$name"
    if said="$({ "$@" && mkdir -p "$name/store" && head -c 8292 /dev/urandom >"$name/store/c"; } 2>&1)"; then
        printf '%s\tok\n' "$name"
    else
        printf '%s\t%s\n' "$name" "$(tr '\n' ' ' <<<"$said")"
    fi
}

# loop NAME SIZE OPTIONS MKFS...: a file system in an image file; the loop device goes with the mount.
loop() {
    local name="$1" size="$2" options="$3"
    shift 3
    truncate -s "$size" "$name.img" && "$@" "$name.img" && mount -o "loop$options" "$name.img" "$name"
}

# Its layers lie on tmpfs: the scratch directory may be an overlay itself, which cannot be the upper one of another.
overlay() {
    mkdir -p "$1.base" && mount -t tmpfs none "$1.base" && mkdir "$1.base/lower" "$1.base/upper" "$1.base/work" &&
        mount -t overlay -o "lowerdir=$1.base/lower,upperdir=$1.base/upper,workdir=$1.base/work" overlay "$1"
}

written_as_default() { mkfs.ext4 -q -F "$1" && tune2fs -o journal_data_writeback "$1" >/dev/null; }

try tmpfs mount -t tmpfs none tmpfs
try overlay overlay overlay
try ext4 loop ext4 16M "" mkfs.ext4 -q -F
try ext4-writeback loop ext4-writeback 16M ,data=writeback mkfs.ext4 -q -F
try ext4-journal loop ext4-journal 16M ,data=journal mkfs.ext4 -q -F
try ext4-superblock loop ext4-superblock 16M "" written_as_default
try xfs loop xfs 300M "" mkfs.xfs -q
try read-only loop read-only 16M "" mkfs.ext4 -q -F
mount -o remount,ro read-only 2>/dev/null
ln -s "$PWD/ext4" ext4-link
mkdir -p ext4-bound && mount --bind ext4 ext4-bound
echo ready
exec cat >/dev/null
