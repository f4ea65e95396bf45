"""The web console: what services report, as pages to look at (WEB-1, WEB-2). It changes nothing.

    command  `connector serve`
    server   the address, TLS and the token
    app      paths, errors, and the headers that keep content from outside from acting
    pages    the values of each page, from services
    latest   the newest status, read in the background
    charts   charts as SVG

The pages have no script. Templates escape every value.
"""
