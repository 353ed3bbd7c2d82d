-- Fewer bytes for each conversation (docs/decisions/021-bytes-in-postgresql.md).

-- A short memo is in the row of its record: one row and one index entry less. A long one is in memos, so that claims do
-- not copy it. A memo that an earlier release wrote moves with the next write.
alter table @schema@.records add column memo text;
create function @schema@.short(memo text) returns text
    language sql immutable parallel safe
    return case when octet_length(memo) <= 256 then memo end;

-- Tags by a hash, which finds records; their column tags decides. It leaves out the kind of a tag, so that user:1 and
-- chat:1 of a private chat take one row.
create function @schema@.tag_hash(namespace text, tag text) returns bigint
    language sql immutable parallel safe
    return ('x' || left(encode(sha256(convert_to(
        namespace || chr(10) || substr(tag, strpos(tag, ':') + 1), 'UTF8'
    )), 'hex'), 16))::bit(64)::bigint;

create table @schema@.tagged (
    hash bigint not null,
    key text collate "C" not null
);
insert into @schema@.tagged
    select distinct @schema@.tag_hash(r.namespace, x.tag), r.key from @schema@.records r, unnest(r.tags) x(tag);
alter table @schema@.tagged add primary key (hash, key);
-- The tags of damaged records. Longer ones are not complete in this table.
insert into @schema@.tagged
    select @schema@.tag_hash(t.namespace, t.tag), t.key from @schema@.tags t
    where octet_length(t.tag) <= 256 and not exists (
        select from @schema@.records r where r.namespace = t.namespace and r.key = t.key and t.tag = any (r.tags)
    )
    on conflict do nothing;

-- For processes of an earlier release. They find no lane, so they use the functions instead of their fast path, which
-- does not know where memos are now.
drop table @schema@.tags;
create view @schema@.tags as
    select r.namespace, @schema@.indexed(x.tag) as tag, r.key from @schema@.records r, unnest(r.tags) x(tag);
alter table @schema@.lanes rename to journal;
alter index @schema@.lanes_pkey rename to journal_pkey;
create view @schema@.lanes as select * from @schema@.journal where false;

-- Of 70 to 100, this fill factor takes the fewest bytes after some updates of each record, and almost as many of them touch
-- no index as with the lowest.
alter table @schema@.records set (fillfactor = 90);

@include 002_run_batch.sql@
@include 003_sweep.sql@
