#!/bin/sh
# One check of two fails.
echo "ok this"
echo "not ok that: on purpose"
