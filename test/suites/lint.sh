# lint: the rules of the house that a machine can check. A check prints what is wrong; no output means it holds.
# shellcheck shell=bash

suite_lint() {
    local check
    mapfile -t sources < <(find src -name '*.[ch]' | sort)
    strip_sources
    for check in versions test_lists leftovers version_ladders sql_texts table_writes file_access symbols sizes \
                 clang cppcheck shellcheck; do
        if ((${#cases[@]})) && [[ " ${cases[*]} " != *" $check "* ]]; then continue; fi
        "lint_$check" >"$RATCHET_WORK/lint.$check" 2>&1 || echo "code $?" >>"$RATCHET_WORK/lint.$check"
        if [[ -s $RATCHET_WORK/lint.$check ]]; then
            fail "$check" "$RATCHET_WORK/lint.$check"
        else
            pass "$check"
        fi
    done
}

# A copy of the C files in $code without comments and strings, line for line, so that grep sees code only.
strip_sources() {
    local file
    code=$RATCHET_WORK/code
    for file in "${sources[@]}"; do
        mkdir -p "$code/${file%/*}"
        perl -0777 -pe 's{/\*.*?\*/ | "(?:\\.|[^"\\])*" | \x27(?:\\.|[^\x27\\])*\x27}{$& =~ tr/\n//cdr}gsex' \
            "$file" >"$code/$file"
    done
}

only_in() {     # only_in HOME REGEXP: the lines that match anywhere else (HOME is an expression too)
    (cd "$code" && grep -rnP "$2" src) | grep -vE "^($1):" || true
}

# The one version is the control file's; PGXN wants three numbers.
lint_versions() {
    local version meta
    version=$(sed -nE "s/^default_version *= *'(.*)'/\1/p" ratchet.control)
    [[ -f sql/ratchet--$version.sql ]] || echo "ratchet.control: no sql/ratchet--$version.sql"
    while read -r meta; do
        [[ $meta == "$version" || $meta == "$version.0" ]] || echo "META.json: $meta, but ratchet.control: $version"
    done < <(sed -nE '/"meta-spec"/q; s/^ *"version": *"([^"]*)".*/\1/p' META.json)
    grep -q "\"file\": \"sql/ratchet--$version.sql\"" META.json || echo "META.json: does not name sql/ratchet--$version.sql"
    if [[ -f CHANGELOG.md ]]; then
        meta=$(sed -nE '/^##.*[^0-9.]([0-9]+\.[0-9]+(\.[0-9]+)?).*/ { s//\1/p; q }' CHANGELOG.md)
        [[ -z $meta || $meta == "$version" || $meta == "$version.0" ]] || echo "CHANGELOG.md: newest is $meta, not $version"
    fi
}

# Every case is listed and every listed one is there, with what is expected of it and nothing left over.
lint_test_lists() {
    local file
    same_names REGRESS "$(names sql sql | grep -v '^ratchet--')" "$(make -s print-REGRESS)"
    same_names ISOLATION "$(names test/isolation/specs spec)" "$(make -s print-ISOLATION)"
    same_names expected/ "$(names expected out | drop_alternatives sql sql)" "$(make -s print-REGRESS)"
    same_names test/isolation/expected/ \
        "$(names test/isolation/expected out | drop_alternatives test/isolation/specs spec)" "$(make -s print-ISOLATION)"
    for file in test/t/*; do
        [[ ! -e $file || $file =~ /[0-9]{3}_[a-z0-9_]+\.pl$ ]] || echo "$file: not named NNN_topic.pl"
    done
    for file in test/pgtap/*; do
        [[ ! -e $file || $file =~ /[a-z0-9_]+\.sql$ ]] || echo "$file: not named topic.sql"
    done
}

names() { find "$1" -maxdepth 1 -name "*.$2" -printf '%f\n' 2>/dev/null | sed "s/\.$2\$//"; }

drop_alternatives() {   # topic_1 is a second answer to topic, unless there is a case of that name
    local name
    while read -r name; do
        if [[ $name =~ ^(.+)_[0-9]$ && -f $1/${BASH_REMATCH[1]}.$2 && ! -f $1/$name.$2 ]]; then continue; fi
        echo "$name"
    done
}

same_names() {  # same_names WHERE FILES LIST
    comm -3 <(sort <<<"$2") <(tr ' ' '\n' <<<"$3" | sort) | sed -nE "s|^([^\t]+)|$1: \1 is a file, but not listed|p
        s|^\t(.+)|$1: \1 is listed, but has no file|p"
}

lint_leftovers() { grep -rnwE 'TODO|FIXME|XXX' src sql/ratchet--*.sql || true; }
lint_version_ladders() { only_in src/compat.h '\bPG_VERSION_NUM\b'; }
lint_sql_texts() { only_in src/queries.c '\bSPI_prepare'; }
lint_table_writes() {
    local calls='(simple_|ratchet_)?(table|heap)_(tuple_|multi_)?(insert|update|delete)|simple_heap_\w+'
    only_in 'src/job/storage.c|src/compat.h' "\b($calls)\s*\("
}
lint_file_access() {
    local libc='f?open|freopen|openat|creat|p?write|rename|unlink|remove|mkdir|popen|system'
    local server='AllocateFile|OpenTransientFile|PathNameOpenFile\w*|BasicOpenFile\w*'
    only_in none "\b($libc|$server)\s*\("
}

# The server puts all libraries into one name space.
lint_symbols() {
    nm -D --defined-only ratchet.so |
        awk '$3 !~ /^(ratchet_|pg_finfo_ratchet_|Pg_magic_func$|_PG_init$)/ { print "exported: " $3 }'
}

# In pgindent's layout a function is what lies between a "{" and a "}" that stand alone in the first column.
lint_sizes() {
    awk 'FNR == 1 && last { check() } { last = FILENAME; lines = FNR }
        $0 == "{" { start = FNR }
        $0 == "}" && (n = FNR - start - 1) > 110 { printf "%s:%d: function of %d lines, above 110\n", FILENAME, start, n }
        END { if (last) check() }
        function check() { if (lines >= 700) printf "%s: %d lines, not below 700\n", last, lines }' "${sources[@]}" /dev/null
}

# The build was gcc with -Werror; clang, which PGXS brings along for bitcode, sees other things.
lint_clang() {
    local clang
    clang=$(make -s print-CLANG)
    if [[ ! -x $clang ]]; then return; fi
    # shellcheck disable=SC2046
    find src -name '*.c' -print0 | xargs -0 -r -P "$(nproc)" -n 8 "$clang" -fsyntax-only -Werror -Wall \
        -Wmissing-prototypes -Wpointer-arith -Wdeclaration-after-statement -Wformat-security -Wno-ignored-attributes \
        -fwrapv -fno-strict-aliasing $(make -s print-CPPFLAGS)
}

lint_cppcheck() {
    if command -v cppcheck >/dev/null; then cppcheck --quiet -j "$(nproc)" --inline-suppr -I src src; fi
}

lint_shellcheck() {
    if command -v shellcheck >/dev/null; then
        find . -name '*.sh' -print0 |
            xargs -0 shellcheck -S warning .ci/run test/run test/demo test/lib/apt-install
    fi
}
