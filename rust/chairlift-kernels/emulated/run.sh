#!/usr/bin/env bash
# Runs the tests of this crate on an emulated processor with AVX-512, VNNI and BF16: Bochs, which computes
# what every instruction is defined to do, boots Linux with the test binaries as its first processes.
#
#   emulated/run.sh [INSTRUCTION_SET...]       all of them by default; a set takes some minutes
#
# TESTS names some of the files in tests/ ("linear quantized"), which are all by default. BOCHS names a folder
# with a built Bochs, BOCHS_SOURCE a git repository to build it from, KERNEL a Linux kernel image; all are
# fetched by default. Beside the Rust toolchain it needs (on Debian)
#   apt install build-essential git cpio xorriso isolinux syslinux-common busybox-static
set -euo pipefail

BOCHS_SOURCE=${BOCHS_SOURCE:-https://github.com/bochs-emu/Bochs}
# The state of 2026-08-22; bochs.patch says what it lacks.
BOCHS_COMMIT=783b58fd6d9bae598a07c59719122322fa0edce6
TARGET=x86_64-unknown-linux-musl
MAX_SECONDS=${MAX_SECONDS:-3600}
SETS=${*:-avx512bf16 avx512vnni avx512 avx2 portable}
read -ra tests <<< "${TESTS:-}"

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
bochs=${BOCHS:-$root/.tools/bochs/bochs}
boot=$root/target/emulated
isolinux=/usr/lib/ISOLINUX/isolinux.bin
ldlinux=/usr/lib/syslinux/modules/bios/ldlinux.c32

for tool in cargo c++ make git cpio gzip xorriso busybox strip; do
    command -v "$tool" >/dev/null || { echo "missing: $tool (see the head of $0)" >&2; exit 1; }
done
for file in "$isolinux" "$ldlinux"; do
    test -e "$file" || { echo "missing: $file (see the head of $0)" >&2; exit 1; }
done
test -d "$(rustc --print target-libdir --target "$TARGET")" || rustup target add "$TARGET"

# --- the emulator ------------------------------------------------------------------------------
if [[ ! -x $bochs/bochs ]]; then
    echo "==> Bochs in $bochs"
    mkdir -p "$root/.tools/bochs"
    cd "$root/.tools/bochs"
    git init --quiet
    git fetch --quiet --depth 1 "$BOCHS_SOURCE" "$BOCHS_COMMIT"
    git checkout --quiet --force FETCH_HEAD
    git apply "$here/bochs.patch"
    cd bochs
    export CFLAGS="-O2 -w" CXXFLAGS="-O2 -w"
    ./configure --enable-cpu-level=6 --enable-x86-64 --enable-vmx=2 --enable-avx --enable-evex \
        --enable-all-optimizations --disable-docbook --with-nogui > configure.log 2>&1
    make --jobs 2 bochs > make.log 2>&1 || { tail -n 20 make.log >&2; exit 1; }
fi

# --- the kernel --------------------------------------------------------------------------------
mkdir -p "$boot/iso/isolinux"
if [[ -z ${KERNEL:-} ]]; then
    KERNEL=$root/.tools/vmlinuz
    if [[ ! -e $KERNEL ]]; then
        echo "==> Debian's cloud kernel in $KERNEL"
        package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
        download=$(mktemp -d)
        (cd "$download" && apt-get download "$package" > apt.log && dpkg --extract ./*.deb .)
        cp "$download"/boot/vmlinuz-* "$KERNEL"
        rm -r "$download"
    fi
fi

# --- a disk with the tests -----------------------------------------------------------------------
echo '==> test binaries'
rm -rf "$boot/root"
mkdir -p "$boot/root/tests" "$boot/root/bin"
(cd "$root" && cargo test --locked --no-run --package chairlift-kernels "${tests[@]/#/--test=}" --target "$TARGET" \
    --message-format json) \
    | grep -o '"executable":"[^"]*"' | cut -d '"' -f 4 | while read -r binary; do
    name=$(basename "$binary")
    strip -o "$boot/root/tests/${name%-*}" "$binary"
done
cp "$(command -v busybox)" "$boot/root/bin/busybox"
cp "$here/init" "$boot/root/init"
echo "$SETS" > "$boot/root/sets"
(cd "$boot/root" && find . | cpio --quiet --create --format newc | gzip -1) > "$boot/iso/initrd.gz"
cp "$KERNEL" "$boot/iso/vmlinuz"
cp "$isolinux" "$ldlinux" "$boot/iso/isolinux"
cat > "$boot/iso/isolinux/isolinux.cfg" <<'CONFIG'
DEFAULT linux
LABEL linux
  KERNEL /vmlinuz
  INITRD /initrd.gz
  APPEND console=ttyS0 quiet loglevel=3 mitigations=off nokaslr panic=-1 random.trust_cpu=on lsm= idle=halt
CONFIG
xorriso -as mkisofs -quiet -o "$boot/tests.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
    -no-emul-boot -boot-load-size 4 -boot-info-table "$boot/iso" 2> "$boot/xorriso.log"

# --- run -----------------------------------------------------------------------------------------
cat > "$boot/bochsrc" <<CONFIG
display_library: nogui
cpu: model=corei7_skylake_x, count=1, ips=200000000, reset_on_triple_fault=0, ignore_bad_msrs=1, add_features="avx512vnni,avx512bf16"
memory: guest=512, host=512
romimage: file=$bochs/bios/BIOS-bochs-latest
vgaromimage: file=$bochs/bios/VGABIOS-lgpl/VGABIOS-lgpl-latest.bin
ata0-master: type=cdrom, path=$boot/tests.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$boot/serial.log
log: $boot/bochs.log
clock: sync=none
panic: action=fatal
CONFIG
echo "==> $SETS on an emulated processor (the console: $boot/serial.log)"
rm -f "$boot/serial.log"
# Power-off ends the emulator with a status of its own: what the guest printed counts.
timeout "$MAX_SECONDS" "$bochs/bochs" -q -f "$boot/bochsrc" < /dev/null > "$boot/bochs.out" 2>&1 || true
tr -d '\r' < "$boot/serial.log" | grep -E '^(==|test |thread|assertion|test result)' || true
tr -d '\r' < "$boot/serial.log" | grep -q '^== every test passed' || { echo 'FAILED' >&2; exit 1; }
