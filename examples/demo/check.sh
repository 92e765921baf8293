#!/bin/bash
# check.sh: the demo checks itself.
exec bash "$(dirname "${BASH_SOURCE[0]}")/demo.sh"
