#!/bin/sh
# Its second line is fine.
# memory:
echo "ok this"
