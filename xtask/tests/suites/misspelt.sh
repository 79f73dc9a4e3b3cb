#!/bin/sh
# memroy: 1
echo "ok this"
