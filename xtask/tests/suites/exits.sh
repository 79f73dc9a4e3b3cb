#!/bin/sh
# Ends with a code that no line explains.
echo "ok this"
exit 3
