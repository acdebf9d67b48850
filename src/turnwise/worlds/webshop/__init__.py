"""WebShop in Python: the catalogue, Lucene's ranking, the pages and the reward, without Java, torch or a web server."""
