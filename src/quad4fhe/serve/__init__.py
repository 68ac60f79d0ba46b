"""A service that never sees the data: server (`app`, `pool`, `worker`, `spool`), client (`client`), and their paper."""
