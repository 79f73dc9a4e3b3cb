#!/bin/sh
# memory: much
echo "ok this"
