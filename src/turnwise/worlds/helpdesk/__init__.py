"""Answer questions about a small database with tools, beside a reference of the calls that answer them."""
