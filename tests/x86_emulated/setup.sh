#!/usr/bin/env bash
# Builds an emulator of x86 CPUs that have AVX-512, VNNI and AMX, and a Linux for it: nothing is
# installed. Usage: tests/x86_emulated/setup.sh [FOLDER]
# (default: ${XDG_CACHE_HOME:-~/.cache}/forge-pipeline/x86-emulated)
# Needs Debian 12 or a relative of it on x86-64, with apt-get, dpkg, gcc, g++ and make; and the project's environment,
# or PYTHON, another one; about 0.5 GB, and five minutes to compile.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/forge-pipeline/x86-emulated}")
python=${PYTHON:-$here/../../.venv/bin/python}
[[ -f $folder/ready ]] && { echo "$folder is ready"; exit 0; }
numpy="numpy==$("$python" -c "import importlib.metadata as m; print(m.version('numpy'))")"
work=$folder/work
mkdir -p "$work"/{lists/partial,apt/archives/partial,debs,wheels,kernel,bochs} "$folder"/root/{site,dev,tmp}

# Bochs 3.0 from Debian 13, whose packages are not for Debian 12, and want a display.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
echo "deb-src $mirror trixie main" >"$work/sources.list"
trixie=(-o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/apt" -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
apt-get "${trixie[@]}" -qq update
(cd "$work/bochs" && apt-get "${trixie[@]}" -qq source --tar-only bochs && tar xf bochs_3.0*.orig.tar.xz)
cd "$work"/bochs/bochs-3.0
# Corrections. Linux hands out tile registers only where their use can be trapped (XFD): Bochs has no such trap, says here
# that it has, and tiles work from the start. The others are faults that these tests met, mended after the architecture
# manual: TDPBUSD's second operand is signed; the index of an EVEX gather may be one of the registers from 16 on; the short
# displacements of EVEX-coded VPINSRB and VPEXTRW count bytes and words; code that was written over is looked for one line
# of 128 bytes further where tiles may be used, since that is where it is kept.
patched() { sed -i "$2" "$1"; grep -qF -- "$3" "$1" || { echo "$1: nothing to correct" >&2; exit 1; }; }
patched cpu/cpuid.cc 's/leaf->eax |= (1<<3);/leaf->eax |= (1<<3) | (1<<4);/' '(1<<3) | (1<<4);'
patched cpu/cpuid.cc 's/leaf->ecx = (cpu->ia32_xss_suppmask & (1 << subfunction)) != 0;/& leaf->ecx |= (subfunction == 18) << 2;/' \
  'subfunction == 18'
patched cpu/avx/amx.cc '/Bit32u DPBDUS(/,/^}/ { /ybyte\[4\]/ s/Bit8u/Bit8s/g }' 'Bit8s ybyte'
patched cpu/decoder/fetchdecode32.cc 's/ *i->setSibIndex(i->sibIndex() | (vvv & 0x10));/&\n      vvv \&= 0xf;/' 'vvv &= 0xf;'
decoder='/^unsigned evex_displ8_compression(/,/^}/ s/  if (src == BX_SRC_RM) {/&'
decoder+='\n    if (ia_opcode == BX_IA_EVEX_VPINSRB_VdqEbIb) return 1;\n    if (ia_opcode == BX_IA_EVEX_VPEXTRW_MwVdqIbM) return 2;/'
patched cpu/decoder/fetchdecode32.cc "$decoder" 'BX_IA_EVEX_VPINSRB_VdqEbIb) return 1;'
patched cpu/icache.h 's/if (line_mask > mask) break;/if (line_mask > (mask | mask << 1)) break;/' 'mask | mask << 1'
CFLAGS="-O2 -w" CXXFLAGS="-O2 -w" ./configure --quiet --with-nogui --disable-docbook --disable-plugins \
  --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx --enable-fpu --enable-memtype \
  --enable-protection-keys --enable-cet --enable-uintr --enable-svm --enable-vmx=2 --enable-pci \
  --enable-all-optimizations >"$work/configure.log"
make --silent -j"$(nproc)" bochs >"$work/make.log" 2>&1 || { tail "$work/make.log" >&2; exit 1; }
cp bochs "$folder/bochs"

cd "$work"
gcc -c -m32 -o boot.o "$here/boot.S"
ld -m elf_i386 -Ttext 0 -e 0 --oformat binary -o "$folder/firmware" boot.o
head -c 32768 /dev/zero >"$folder/no-vga"

kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ {print $2; exit}')
packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libstdc++6 libgcc-s1 libgomp1 libffi8 libc6
  zlib1g libexpat1 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libncursesw6 libtinfo6)
(cd debs && apt-get -o APT::Sandbox::User=root -qq download "$kernel" "${packages[@]}")
dpkg -x debs/linux-image-*.deb kernel
cp kernel/boot/vmlinuz-* "$folder/linux"
rm debs/linux-image-*.deb
for deb in debs/*.deb; do dpkg -x "$deb" "$folder/root"; done
gcc -O2 -shared -fPIC -o "$folder/root/ports.so" "$here/ports.c"
gcc -O2 -static -o "$folder/init" "$here/init.c"

# What the runtime imports.
site=$folder/root/site
"$python" -m pip download --quiet --dest wheels --only-binary=:all: --python-version 3.11 \
  --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --no-deps \
  "$numpy"
for wheel in wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
find "$folder/root" -depth \( -path '*/tests' -o -path '*/share/doc' -o -path '*/share/man' -o -path '*/share/locale' \
  -o -path '*/gconv' -o -path '*/lib2to3' -o -name include \) -exec rm -rf {} +
# Reading source takes an emulated machine a minute.
LD_LIBRARY_PATH=$folder/root/lib/x86_64-linux-gnu PYTHONHOME=$folder/root/usr "$folder/root/usr/bin/python3.11" \
  -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$folder/root" "$folder/root/usr/lib/python3.11" "$site" ||
  true # some files are templates
rm -rf "$work"
touch "$folder/ready"
echo "$folder is ready"
