"""Show run directories in a web page that follows runs while they grow.

It reads and never writes. `reading` takes whatever is there, `catalogue` finds runs and remembers what it read, `rows`,
`detail`, `comparison`, `contents` and `matrices` make plain data of it, `app` serves them and `page/` draws them.
"""
