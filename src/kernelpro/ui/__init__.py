"""The live page: `kernelpro ui`, a local web application that shows runs and steers them.

It reads the stores of runs, so it shows runs of other processes, of a cluster, and finished ones. Its only
writes are requests of the user: events in the store (records/events.py), and answers in an inbox.

    server.py     binds the socket and serves            app.py       the routes
    security.py   hosts, origins, the token, headers     locations.py which runs and benches there are
    brief.py      a step in a few fields                 overview.py  a run in one row of the list
    feed.py       what changed in a run, in batches      stream.py    the feed as server-sent events
    requests.py   a request of the page as an event      questions.py the waiting questions of an inbox
    log.py        events as lines                        costs.py     transcripts, without reading them twice
    pages.py      HTML, with assets/ and the report's    suites.py    results of benches
"""
