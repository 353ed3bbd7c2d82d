-- The flows and states of a namespace ($1); some may have no records. One index lookup for each, however many records it
-- has. Each chain of values ends with null. A row without a record has neither flow nor state.
-- Not min(): before PostgreSQL 18, a plan that was made for an empty table reads all rows for it.
with recursive flows (flow) as (
    select (
        select r.flow from @schema@.records r
        where r.namespace collate "POSIX" = $1 and r.flow is not null
        order by r.flow limit 1
    )
    union all
    select (
        select r.flow from @schema@.records r
        where r.namespace collate "POSIX" = $1 and r.flow > f.flow
        order by r.flow limit 1
    )
    from flows f where f.flow is not null
), places (flow, state) as (
    select f.flow, coalesce(
        (
            select r.state from @schema@.records r
            where r.namespace collate "POSIX" = $1 and r.flow = f.flow and r.state is not null
            order by r.state limit 1
        ),
        (
            select r.state from @schema@.records r
            where r.namespace collate "POSIX" = $1 and f.flow is null and r.flow is null and r.state is not null
            order by r.state limit 1
        )
    )
    from flows f
    union all
    select p.flow, coalesce(
        (
            select r.state from @schema@.records r
            where r.namespace collate "POSIX" = $1 and r.flow = p.flow and r.state > p.state
            order by r.state limit 1
        ),
        (
            select r.state from @schema@.records r
            where r.namespace collate "POSIX" = $1 and p.flow is null and r.flow is null and r.state > p.state
            order by r.state limit 1
        )
    )
    from places p where p.state is not null
)
select p.flow, p.state from places p
