# report.sh: what a suite says about its cases, and the sum of it all.
# shellcheck shell=bash

results=$RATCHET_WORK/results           # lines of: suite, ok or FAIL, name
: >"$results"

pass() {    # pass NAME
    printf '%s\tok\t%s\n' "$suite" "$1" >>"$results"
    if [[ -n ${V:-} ]]; then echo "   ok    $1"; fi
}

fail() {    # fail NAME [LOG]
    printf '%s\tFAIL\t%s\n' "$suite" "$1" >>"$results"
    echo "   FAIL  $1"
    if [[ -n ${2:-} ]]; then show "$2"; fi
}

show() {    # show LOG: its end
    if [[ -s $1 ]]; then tail -n 80 "$1" | sed 's/^/         | /'; fi
}

count() {   # count SUITE|all: "N passed, N failed"
    awk -F'\t' -v suite="$1" 'suite == "all" || $1 == suite { n[$2]++ }
        END { printf "%d passed, %d failed\n", n["ok"], n["FAIL"] }' "$results"
}

# One result per case of pg_regress and pg_isolation_regress; both the words of 15 and those of 16 and later.
report_regress() {  # report_regress LOG DIFFS EXIT-CODE
    local verdict name failed=0
    while read -r verdict name; do
        if [[ $verdict == ok ]]; then pass "$name"; else fail "$name"; failed=1; fi
    done < <(sed -nE -e 's/^(test|    ) +([^ ]+) +\.\.\. (ok|FAILED).*/\3 \2/p' \
                     -e 's/^ok +[0-9]+ +[-+] ([^ ]+).*/ok \1/p' -e 's/^not ok +[0-9]+ +[-+] ([^ ]+).*/FAILED \1/p' "$1")
    if ((failed)); then
        show "$2"
    elif (($3)); then
        fail "the runner itself" "$1"
    fi
}

# One result per assertion of a TAP file; skipped ones and known failures (todo) are no result at all.
report_tap() {      # report_tap NAME LOG EXIT-CODE
    local line failed=0
    while read -r line; do
        if [[ $line == not* ]]; then fail "$1: ${line#not ok }"; failed=1; else pass "$1: ${line#ok }"; fi
    done < <(sed -nE -e '/# *(skip|todo)/Id' -e '/^(not )?ok /p' "$2")
    if ((failed)); then
        show "$2"
    elif (($3)); then
        fail "$1 ended with code $3" "$2"
    fi
}

# Fill "cases", unless the command line did: from a list in the Makefile, or with the files that match, less their ending.
pick_cases() {      # pick_cases VARIABLE
    if ((${#cases[@]} == 0)); then read -ra cases < <(make -s "print-$1"); fi
}

pick_files() {      # pick_files PATTERN
    if ((${#cases[@]} == 0)); then
        mapfile -t cases < <(compgen -G "$1" | sed -E 's|.*/||; s|\.[a-z]+$||' | sort)
    fi
}
