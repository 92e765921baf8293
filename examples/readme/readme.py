#!/usr/bin/env python3
"""readme.py [--write]: run the SQL of README.md and compare what it prints with what the README says it prints.

Every ```sql block runs, in order, in one psql session in the database that PG* names: a fresh one with the extension. A
```text block behind it is what psql must answer, but for ids, times and the width of columns; without one there must be no
error. A ```sql norun block is for reading only. --write puts the answers into README.md instead.
"""
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```sql\n(?P<sql>.*?)^```\n(?:\n?^```text\n(?P<text>.*?)^```\n)?", re.M | re.S)
END = "-- end of block --"
VARIES = [
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([+-]\d\d)?"), "TIME"),
    (re.compile(r"job_archive_\d{8}"), "PARTITION"),
    (re.compile(r"\d\d:\d\d:\d\d\.\d+"), "INTERVAL"),
    (re.compile(r"-{2,}"), "--"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" $", re.M), ""),
]


def run(blocks):
    script = "".join(f"{sql}\n\\echo {END}\n" for sql in blocks)
    done = subprocess.run(["psql", "-Xq", "-P", "pager=off"], input=script, text=True, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    answers = done.stdout.split(END + "\n")
    assert len(answers) == len(blocks) + 1, done.stdout
    return [re.sub(r"\s+$", "\n", re.sub(r"[ \t]+$", "", a, flags=re.M).lstrip("\n")) if a.strip() else "" for a in answers[:-1]]


def comparable(text):
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return text.strip()


def main():
    page = README.read_text()
    found = list(BLOCK.finditer(page))
    answers = run([m["sql"] for m in found])
    if "--write" in sys.argv:
        for m, answer in reversed(list(zip(found, answers))):
            if m["text"] is not None:
                page = page[:m.start("text")] + answer + page[m.end("text"):]
        README.write_text(page)
    wrong = 0
    for m, answer in zip(found, answers):
        line = page.count("\n", 0, m.start()) + 1
        if m["text"] is None and "ERROR:" in answer or \
                m["text"] is not None and "--write" not in sys.argv and comparable(answer) != comparable(m["text"]):
            wrong += 1
            print(f"README.md:{line}:\n{m['sql']}prints\n{answer}instead of\n{m['text'] or 'no error'}")
    print(f"{len(found)} blocks, {wrong} wrong")
    sys.exit(wrong > 0 or not found)


main()
