# Much at once, and for long: the largest batches and payloads, many queues, a cancel in the middle, and a session that does
# not grow.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

my $node = ratchet_node('main');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Batches.
is(sql(q{SELECT count(DISTINCT id) FROM ratchet.enqueue_many('k', (SELECT array_agg(jsonb_build_object('n', n)) FROM generate_series(1, 20000) n), queue => 'many') id}),
    '20000', 'enqueue_many of 20,000');
sql(q{CREATE TABLE claimed AS SELECT row_number() OVER () AS place, * FROM ratchet.claim('many', 'w', batch => 10000)});
is(sql(q{SELECT count(DISTINCT id), count(DISTINCT token), min((payload->'n')::int), max((payload->'n')::int) FROM claimed}),
    '10000|1|1|10000', 'a claim of 10,000 gets the first ones, under one token');
is(sql(q{SELECT count(*) FROM claimed WHERE place <> (payload->'n')::int}), '0', 'in their order');
is(sql(q{SELECT count(*) FROM ratchet.heartbeat((SELECT array_agg(id) FROM claimed), (SELECT array_agg(DISTINCT token) FROM claimed)) WHERE status = 'ok'}),
    '10000', 'a heartbeat for 10,000');
is(sql(q{SELECT count(DISTINCT id) FROM ratchet.complete_many((SELECT array_agg(id) FROM claimed), (SELECT array_agg(DISTINCT token) FROM claimed)) id}),
    '10000', 'complete_many of 10,000');
sql_fails($node, 'postgres', q{SELECT count(*) FROM ratchet.claim('many', 'w', batch => 10001)}, '22023', 'a batch above 10,000 is refused');
is(sql(q{SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM ratchet.jobs WHERE queue = 'many' GROUP BY 1) x}),
    'pending 10000, succeeded 10000', 'and claims nothing');
is(sql(q{SELECT count(DISTINCT id) FROM ratchet.enqueue_many((SELECT jsonb_agg(jsonb_build_object('kind', 'k', 'queue', 'json', 'idempotency_key', 'i' || n % 1500, 'priority', n % 100)) FROM generate_series(1, 3000) n)) id}),
    '1500', 'enqueue_many of an array of objects with keys');

# One too many in a long array spoils all of it.
sql_fails($node, 'postgres', q{SELECT ratchet.enqueue_many((SELECT jsonb_agg(jsonb_build_object('kind', CASE WHEN n = 3000 THEN '' ELSE 'k' END, 'queue', 'spoilt', 'idempotency_key', 's' || n)) FROM generate_series(1, 3000) n))},
    '22023', 'one bad job among 3,000');
is(sql(q{SELECT (SELECT count(*) FROM ratchet.job WHERE queue = 'spoilt') + (SELECT count(*) FROM ratchet.idempotency_key WHERE queue = 'spoilt')}), '0', 'leaves nothing');

# Sizes: what counts is the jsonb value before compression. A string value has some bytes around it; pg_column_size of a value
# that was never stored says how many.
my $fitting = q{(SELECT to_jsonb(repeat('x', 1048576 - (pg_column_size(to_jsonb(repeat('x', 1000))) - 1000))))};
my $larger  = q{(SELECT to_jsonb(repeat('x', 1048577 - (pg_column_size(to_jsonb(repeat('x', 1000))) - 1000))))};
is(sql(qq{SELECT pg_column_size($fitting), pg_column_size($larger)}), '1048576|1048577', 'values of 1 MB, and one byte more');
is(sql(qq{SELECT ratchet.enqueue('k', $fitting, queue => 'large') IS NOT NULL}), 't', 'a payload of 1 MB');
sql_fails($node, 'postgres', qq{SELECT ratchet.enqueue('k', $larger, queue => 'large')}, '54000', 'one byte more is too large');
sql_fails($node, 'postgres', qq{SELECT ratchet.enqueue_many('k', ARRAY['{}', $larger], queue => 'large')}, '54000', 'among others too');
is(sql(qq{SET ratchet.max_payload_size = '2MB'; SELECT ratchet.enqueue('k2', $larger, queue => 'large') IS NOT NULL}), 't', 'the limit is a setting');
my ($id, $token) = split /\|/, sql(q{SELECT id, token FROM ratchet.claim('large', 'w')});
is(sql(qq{SELECT payload = $fitting FROM ratchet.jobs WHERE id = '$id'}), 't', 'it arrives as it was');
sql_fails($node, 'postgres', qq{SELECT ratchet.complete('$id', '$token', $larger)}, '54000', 'a result of more than 1 MB is too large');
is(sql(qq{SELECT ratchet.complete('$id', '$token', $fitting)}), 't', 'one of 1 MB is not');
is(sql(qq{SELECT result = payload FROM ratchet.jobs WHERE id = '$id'}), 't', 'and arrives');

# Many queues, each with settings of its own.
sql(q{SELECT ratchet.configure_queue('q' || n, priority => n % 50, max_attempts => 1 + n % 7), ratchet.enqueue('k', queue => 'q' || n) FROM generate_series(1, 1000) n});
is(sql(q{SELECT count(*) FROM ratchet.jobs j WHERE queue ~ '^q[0-9]' AND priority = substr(queue, 2)::int % 50 AND max_attempts = 1 + substr(queue, 2)::int % 7}),
    '1000', 'a thousand queues, each with its defaults');
is(sql(q{SELECT count(*), bool_and(queue = 'q' || place) FROM (SELECT row_number() OVER () AS place, queue FROM ratchet.claim((SELECT array_agg('q' || n ORDER BY n) FROM generate_series(1, 1000) n), 'w', batch => 1000)) c}),
    '1000|t', 'one claim over all of them, left to right');

# Cut off in the middle: nothing is left, and the session goes on.
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $huge    = q{SELECT count(*) FROM ratchet.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[500000]), queue => 'cut')};
$session->query_safe(q{SET statement_timeout = '100 ms'});
$session->query($huge);
like($session->{stderr}, qr/canceling statement due to statement timeout/, 'a statement timeout ends enqueue_many');
$session->{stderr} = '';
is(sql(q{SELECT count(*) FROM ratchet.job WHERE queue = 'cut'}), '0', 'and leaves nothing');
$session->query_safe(q{SET statement_timeout = 0});
is($session->query_safe(q{SELECT count(ratchet.enqueue('k', queue => 'cut'))}), '1', 'the session goes on');
is($session->query_safe(q{SELECT count(ratchet.complete(id, token) OR NULL) FROM ratchet.claim('cut', 'w', batch => 10)}), '1', 'with claim and complete');

# The same by pg_cancel_backend, while it is at work.
my $pid = $session->query_safe('SELECT pg_backend_pid()');
$session->query_until(qr/started/, "\\echo started\n$huge;\n");
ok(poll_until($node, qq{SELECT backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = $pid}), 'enqueue_many is writing');
sql("SELECT pg_cancel_backend($pid)");
is($session->query(q{SELECT 'next'}), 'next', 'a cancel ends it at once');
like($session->{stderr}, qr/canceling statement due to user request/, 'and says so');
$session->{stderr} = '';
is(sql(q{SELECT count(*) FROM ratchet.job WHERE queue = 'cut' AND state = 'pending'}), '0', 'and leaves nothing');

# A session that works through 2,000 jobs, with errors among them, does not grow.
sql(q{SELECT count(*) FROM ratchet.enqueue_many('k', array_fill('{"a": "some payload"}'::jsonb, ARRAY[9000]), queue => 'long')});
$session->query_safe(q{CREATE PROCEDURE pg_temp.work(n int) LANGUAGE plpgsql AS $$
    DECLARE c ratchet.claimed;
    BEGIN
        FOR i IN 1 .. n LOOP
            SELECT * INTO STRICT c FROM ratchet.claim('long', 'w');
            IF i % 10 = 0 THEN
                PERFORM ratchet.fail(c.id, c.token, 'an error', false);
            ELSE
                PERFORM ratchet.heartbeat(ARRAY[c.id], ARRAY[c.token]);
                PERFORM ratchet.complete(c.id, c.token, '{"r": 1}');
            END IF;
            IF i % 50 = 0 THEN
                PERFORM ratchet.enqueue('k', queue => 'refill', business_key => 'b' || i, idempotency_key => 'i' || i);
                PERFORM ratchet.configure_queue('refill', priority => i / 50);
            END IF;
            COMMIT;
        END LOOP;
        CALL ratchet.run_maintenance();
        DELETE FROM ratchet.idempotency_key WHERE queue = 'refill';
        PERFORM ratchet.cancel_many('refill');
        COMMIT;
    END $$});
my $memory = q{SELECT sum(total_bytes) FROM pg_backend_memory_contexts};
$session->query_safe('CALL pg_temp.work(500)');
my $before = $session->query_safe($memory);
$session->query_safe('CALL pg_temp.work(2000)');
my $after = $session->query_safe($memory);
note("memory of the session: $before bytes before, $after after 2,000 jobs");
cmp_ok($after - $before, '<', 64 * 1024, 'the memory of a session does not grow with the jobs it works on');
# The same without a procedure: every call a statement of its own.
my $statements = q{SELECT count(ratchet.complete(id, token)) FROM ratchet.claim('long', 'w');} x 500;
$session->query_safe($statements);
$before = $session->query_safe($memory);
$session->query_safe($statements) for 1 .. 4;
$after = $session->query_safe($memory);
note("memory of the session: $before bytes before, $after after 2,000 statements");
cmp_ok($after - $before, '<', 64 * 1024, 'nor with its statements');
# Within one transaction it may, but by little: a claimed job is remembered until its end.
$session->query_safe('BEGIN');
$session->query_safe($statements);
$before = $session->query_safe($memory);
$session->query_safe($statements) for 1 .. 3;
$after = $session->query_safe($memory);
note("memory of the session: $before bytes before, $after after 1,500 statements in one transaction");
cmp_ok($after - $before, '<', 1024 * 1024, 'and within one transaction by little');
$session->query_safe('COMMIT');
$session->quit;

done_testing();
