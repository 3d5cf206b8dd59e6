#!/bin/sh
# Gathers the helper's runtime under /.runner: what it needs of this stage's Debian, nothing
# that is not used, nothing that can be written to.
#
#   bin/        supervisor, python3
#   lib/        the loader, shared libraries, python3.11/ (the standard library, compiled)
#   app/        start.py, runner/helper/, re2/
set -eu

version=python3.11
root=/.runner
library=$root/lib/$version

mkdir -p $root/bin $root/lib $root/app/runner
cp /build/supervisor $root/bin/supervisor
cp /usr/bin/$version $root/bin/python3

# The standard library, without what a helper has no use for: tests, tools for developers,
# windows, databases, and everything that hangs on OpenSSL.
cp -r /usr/lib/$version $library
cd $library
rm -rf test idlelib tkinter turtledemo turtle.py ensurepip venv lib2to3 pydoc_data pydoc.py \
    distutils unittest doctest.py pdb.py sqlite3 dbm curses xmlrpc wsgiref config-$version-* \
    dist-packages sitecustomize.py EXTERNALLY-MANAGED ssl.py
cd lib-dynload
rm -f _ssl.* _hashlib.* _sqlite3.* _curses.* _curses_panel.* _dbm.* _gdbm.* _tkinter.* \
    readline.* nis.* _test*.so xx*.so _xx*.so audioop.* ossaudiodev.*
find $library -name __pycache__ -type d -prune -exec rm -r {} +

# What is ours.
cp /build/start.py $root/app/start.py
: > $root/app/runner/__init__.py
cp -r /build/helper $root/app/runner/helper
find $root/app -name __pycache__ -type d -prune -exec rm -r {} +
$version -m zipfile -e /build/wheels/google_re2-*.whl $root/app
rm -r $root/app/google_re2-*.dist-info

# Every shared library that any of it asks for, and the loader under the name it has.
find $root -type f \( -name '*.so' -o -name python3 \) -exec ldd {} + |
    sed -nE 's/^\t([^ ]+ => )?(\/[^ ]+) \(0x.*/\2/p' | sort -u |
    while read -r path; do cp -L "$path" $root/lib/; done

# Trusted as they are, so that reading a module is not also asking for its source's time.
$version -m compileall -q --invalidation-mode unchecked-hash $library $root/app

chown -R 0:0 $root
chmod -R a=rX $root
chmod 0555 $root/bin/* $root/lib/ld-linux-*
