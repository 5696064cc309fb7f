"""The live page: `kernelpro ui`, a local web application that shows runs and steers them.

It reads the stores of runs, so that it also shows runs of other processes or of a cluster, and finished runs.
It writes only requests of the user: events in the store (records/events.py), and answers in an inbox.

    server.py     binds the socket and serves            app.py        the routes
    security.py   hosts, origins, the token, headers     locations.py  where runs and benches are
    brief.py      a step in a few fields                 overview.py   a run as one row of the list
    feed.py       changes of a run, in batches           stream.py     the feed as server-sent events
    requests.py   requests of the page as events         questions.py  the waiting questions of an inbox
    log.py        events as log lines                    costs.py      cost by role, from the transcripts
    pages.py      HTML, with assets/ and the report's    suites.py     results of benches
"""
