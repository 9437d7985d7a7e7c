#!/usr/bin/env bash
# Unpacks an aarch64 Python with TVM's runtime, and an emulator for it, into a folder: nothing is installed.
# Usage: tests/aarch64/setup.sh [FOLDER]   (default: ${XDG_CACHE_HOME:-~/.cache}/forge-pipeline/aarch64)
# Needs Debian 12 or a relative of it on x86-64, with apt-get and dpkg; and the project's environment, or PYTHON,
# another one, for TVM's version; about 1.5 GB.
set -euo pipefail
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/forge-pipeline/aarch64}")
python=${PYTHON:-$(dirname "$0")/../../.venv/bin/python}
[[ -f $folder/ready ]] && { echo "$folder is ready"; exit 0; }
runtime=()
for name in numpy apache-tvm apache-tvm-ffi cryptography cffi; do
  runtime+=("$name==$("$python" -c "import importlib.metadata as m; print(m.version('$name'))")")
done
mkdir -p "$folder"/{lists/partial,debs,wheels,root,site}

packages=(python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libstdc++6 libgcc-s1 libgomp1 libffi8 libc6
  zlib1g libexpat1 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libncursesw6 libtinfo6)
arm=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$folder/lists"
  -o "Dir::Cache=$folder/apt" -o Debug::NoLocking=1)
mkdir -p "$folder/apt/archives/partial"
apt-get "${arm[@]}" -qq update
(cd "$folder/debs" && apt-get "${arm[@]}" -qq download "${packages[@]}" && apt-get -qq download qemu-user-static)
for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done

# What the runtime imports on a device. Only the runtime library of TVM's wheel is kept: the compiler has 260 MB.
"$python" -m pip download --quiet --dest "$folder/wheels" --only-binary=:all: --python-version 3.11 \
  --implementation cp --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
  --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --no-deps \
  "${runtime[@]}" pycparser typing-extensions
for wheel in "$folder"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$folder/site"; done
rm -rf "$folder"/wheels "$folder"/debs "$folder"/lists "$folder"/apt
find "$folder/site/tvm" -type f ! -name libtvm_runtime.so ! -path "$folder/site/tvm/__init__.py" -delete
touch "$folder/ready"
echo "$folder is ready"
