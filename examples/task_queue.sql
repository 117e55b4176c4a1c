-- A job queue. What is to be done is anybody's to ask for; what was done is written by the owner of
-- the task alone, so that table is behind the guard:
--     select pgfence.protect('answers', 'task/{task_id}');
create table tasks (
    task_id  bigint generated always as identity primary key,
    question text not null,
    answered boolean not null default false,
    -- Not before then does anybody look at it again: a hint, so that workers seldom meet.
    next_try timestamptz not null default now()
);

create table answers (
    task_id     bigint primary key references tasks,
    answer      text not null,
    answered_by text not null default session_user
);
