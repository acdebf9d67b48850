"""Write and serve a page about one or more runs: `turnwise report`.

steps.py     outcomes of trajectories
blocks.py    what each traced block did to the credit of each response
credit.py    credit that other methods assign
pieces.py    tokens as text
chunks.py    tables as scripts, which a page on disk may load
summary.py   data that the page loads first: metrics, settings, outcomes, causes of failure
build.py     all data of some runs, step by step
write.py     a folder that opens from disk
live.py      the same folder, served and kept up to date while a run trains
page/        the page: plain scripts, no build
vendor/      libraries, as published; LIST.toml says which
"""
