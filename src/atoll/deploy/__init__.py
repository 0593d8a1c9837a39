"""Run federations between real machines: sites keep their data and states, a server coordinates them.

`protocol` is what is said, `line` how it gets there, `caller` how long the server waits for it. `site` describes
a site; its `worker` answers, takes part in a run as `engagement` says and keeps its work on a `shelf`; `personal` is
what comes of it. On the server's side `muster` finds out who is there, `backend` runs clients through the line, and
`conduct` is a whole run. `flower` and `apps` carry all this over Flower. `cut` makes
sites out of a simulated federation.

Around it: `pki` makes keys and certificates, `layout` knows where they are, `gate` is the only way in from outside.
`server` and `client` are what runs on the two sides, kept alive by `supervise`. `control` speaks to Flower, `follow`
watches a run from outside, and `status` says how everybody is.
"""
