"""Search QA: questions that need several searches of a corpus, as in GiGPO and Search-R1."""
