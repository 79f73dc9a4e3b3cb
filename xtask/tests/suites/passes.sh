#!/bin/sh
# Passes. Words: with a colon are no header.
# timeout: 20
set -eu
[ -d "$ROOT/xtask" ]
echo note >"$OUT/note"
echo "ok this"
echo "ok that"
