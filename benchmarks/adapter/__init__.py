"""The SGLang adapter under SGLang's own host pools and controller: what it adds to the client's calls, and what a prefetch and a
backup come to beside other backends.
"""
