-- What a claim gives back, of a row called r at the time at.t; the order is known to fast_path.py.
r.key, at.t,
-- Where nothing is to be seen, there still is the base to guard with.
case when r.alive and (r.expires_at is null or r.expires_at > at.t) then r.version end as version,
r.write, r.base, r.written_at, r.head, r.data, r.large, nullif(r.tags, '{}'), r.expires_at, r.deadline,
case
    when r.memo_until > at.t then (
        select m.body from @schema@.memos m where m.namespace = r.namespace and m.key = r.key
    )
end as memo
