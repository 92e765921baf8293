#!/bin/bash
# check.sh: what the README prints is what psql prints.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/readme.py"
