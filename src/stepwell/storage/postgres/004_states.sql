-- A view of the visible records with decoded values, for queries.

-- Returns a stored value without its checksum. A damaged value, or one that jsonb does not support, such as a NUL, is
-- returned as text, so that it does not fail the whole query.
create function @schema@.value(stored text) returns jsonb
    language plpgsql immutable strict parallel safe
as $$
begin
    return substr(stored, 10)::jsonb;
exception
    when data_exception or program_limit_exceeded then
        return to_jsonb(substr(stored, 10));
end
$$;

create view @schema@.states as
    select
        r.namespace,
        r.key,
        r.flow,
        r.state,
        coalesce(
            (
                select jsonb_object_agg(f.key, @schema@.value(f.value))
                from jsonb_each_text(r.data || coalesce(r.large, '{}')) f
            ),
            '{}'
        ) as data,
        r.tags,
        r.version,
        to_timestamp(r.written_at) as written_at,
        to_timestamp(r.expires_at) as expires_at,
        to_timestamp(r.deadline) as deadline,
        coalesce(r.token is not null and r.leased_until > date_part('epoch', now()), false) as held
    from @schema@.records r
    where r.alive and (r.expires_at is null or r.expires_at > date_part('epoch', now()));
