#!/bin/sh
# Never ends.
# timeout: 1
echo "ok this"
echo note >"$OUT/note"
sleep 1000
