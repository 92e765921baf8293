# Creating and dropping the extension: again, rolled back, in other sessions, in other encodings, with and without preload.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RatchetNode;
use Test::More;

# One pass through the life of a job; answers its states.
my $life = q{
    SELECT ratchet.enqueue('k', '{"n": 1}', queue => 'life', idempotency_key => 'i', business_key => 'b') AS id \gset
    SELECT state FROM ratchet.jobs WHERE id = :'id';
    SELECT token FROM ratchet.claim('life', 'w') \gset
    SELECT state FROM ratchet.jobs WHERE id = :'id';
    SELECT ratchet.complete(:'id', :'token', '[]', strict => true);
    SELECT state FROM ratchet.jobs WHERE id = :'id';
    CALL ratchet.run_maintenance();
};
my $lived = "pending\nrunning\nt\nsucceeded";
my $leftovers = q{
    SELECT count(*) FROM (
        SELECT nspname FROM pg_namespace WHERE nspname = 'ratchet'
        UNION ALL SELECT proname FROM pg_proc WHERE probin LIKE '%ratchet%'
        UNION ALL SELECT relname FROM pg_class WHERE relname LIKE 'job%'
        UNION ALL SELECT extname FROM pg_extension WHERE extname = 'ratchet') x};

for my $preload (0, 1)
{
    my $how  = $preload ? 'preloaded' : 'not preloaded';
    my $node = ratchet_node("main$preload", preload => $preload, extension => 0);
    my $sql  = sub { return $node->safe_psql('postgres', $_[0]); };

    is($sql->("CREATE EXTENSION ratchet;\n$life"), $lived, "$how: create the extension, and use it in the same session");
    is($sql->('SHOW shared_preload_libraries'), $preload ? 'ratchet' : '', "$how: it is");
    is($sql->('DROP EXTENSION ratchet;' . $leftovers), '0', "$how: dropping it leaves nothing");
    is($sql->("CREATE EXTENSION ratchet;\n$life DROP EXTENSION ratchet; CREATE EXTENSION ratchet;\n$life"),
        "$lived\n$lived", "$how: drop it and create it again in one session");

    # Partitions made at run time go with the extension, and without CASCADE.
    is( $sql->(q{SELECT ratchet.configure_queue('direct', archive_after => '0');
        SELECT 1 FROM (SELECT ratchet.enqueue('k', queue => 'direct')) x;
        SELECT ratchet.complete(id, token) FROM ratchet.claim('direct', 'w');
        SELECT ratchet.maintenance_step('partitions');}), "\n1\nt\n1", "$how: a partition is made");
    is($sql->('DROP EXTENSION ratchet;' . $leftovers), '0', "$how: and dropped with the extension");

    # A session that has used the old one meets the new one, with all it has cached.
    $sql->('CREATE EXTENSION ratchet');
    my $session = $node->background_psql('postgres', on_error_stop => 0);
    is($session->query_safe(q{SELECT count(ratchet.enqueue('k')) FROM generate_series(1, 3)}), '3', "$how: a session uses it");
    is($session->query_safe(q{SELECT count(ratchet.complete(id, token)) FROM ratchet.claim('default', 'w', batch => 3)}), '3', "$how: with all its plans");
    $session->query_safe('CALL ratchet.run_maintenance()');
    $sql->('DROP EXTENSION ratchet');
    like(($session->query(q{SELECT ratchet.enqueue('k')}), $session->{stderr})[-1], qr/schema "ratchet" does not exist/, "$how: it goes while the session lives");
    $session->{stderr} = '';
    $sql->(q{CREATE EXTENSION ratchet; SELECT ratchet.configure_queue('default', priority => 9)});
    is($session->query_safe(q{SELECT count(ratchet.enqueue('k', business_key => 'b' || n)) FROM generate_series(1, 3) n}), '3', "$how: and comes back for it");
    is($session->query_safe(q{SELECT count(ratchet.complete(id, token)) FROM ratchet.claim('default', 'w', batch => 5) WHERE priority = 9}),
        '3', "$how: with the new settings");
    $session->query_safe('CALL ratchet.run_maintenance()');
    $session->quit;
    $sql->('DROP EXTENSION ratchet');

    # Rolled back, all of it, and with a savepoint.
    is($sql->("BEGIN; CREATE EXTENSION ratchet; SELECT count(ratchet.enqueue('k')); ROLLBACK; $leftovers"), "1\n0", "$how: CREATE EXTENSION rolled back leaves nothing");
    is($sql->("BEGIN; SAVEPOINT s; CREATE EXTENSION ratchet; SELECT count(ratchet.enqueue('k')); ROLLBACK TO s; CREATE EXTENSION ratchet; SELECT count(ratchet.enqueue('k')); COMMIT;"
            . 'SELECT count(*) FROM ratchet.job'), "1\n1\n1", "$how: rolled back to a savepoint and created anew");
    is($sql->("BEGIN; DROP EXTENSION ratchet; ROLLBACK; SELECT count(ratchet.complete(id, token)) FROM ratchet.claim('default', 'w')"),
        '1', "$how: DROP EXTENSION rolled back takes nothing");
    $sql->('DROP EXTENSION ratchet');

    # Nothing that is already there is taken over.
    $sql->('CREATE SCHEMA ratchet');
    sql_fails($node, 'postgres', 'CREATE EXTENSION ratchet', '42P06', "$how: a schema of that name is refused");
    is($sql->(q{SELECT count(*) FROM pg_class WHERE relnamespace = 'ratchet'::regnamespace}), '0', "$how: and left alone");
    $sql->('DROP SCHEMA ratchet');

    # Not a trusted extension: its owner can do everything to jobs.
    $sql->('CREATE ROLE regress_plain; GRANT CREATE ON DATABASE postgres TO regress_plain');
    sql_fails($node, 'postgres', 'SET ROLE regress_plain; CREATE EXTENSION ratchet', '42501', "$how: who is no superuser cannot create it");

    # Other encodings: texts are clipped and checked by the characters of the database.
    for my $encoding ('LATIN1', 'SQL_ASCII', 'EUC_JP')
    {
        my $db = lc "enc_$encoding";
        $sql->("CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding' LOCALE 'C'");
        is($node->safe_psql($db, "CREATE EXTENSION ratchet;\n$life"), $lived, "$how: a job's life in $encoding");
        # Two bytes in UTF-8; sent in the client's encoding where the server converts.
        my $client = $encoding eq 'SQL_ASCII' ? 'SQL_ASCII' : 'UTF8';
        my $char   = $encoding eq 'EUC_JP' ? "\xe3\x81\x82" : "\xc3\xa4";
        is( $node->safe_psql($db, qq{SET client_encoding = '$client';
            SELECT ratchet.enqueue('k$char', jsonb_build_object('t', 'x$char'), queue => 'q$char', tags => ARRAY['$char']) AS id \\gset
            SELECT kind || (payload->>'t') || queue || tags[1] FROM ratchet.claim('q$char', 'w$char');}),
            "k${char}x${char}q${char}${char}", "$how: other letters in $encoding");
        # An odd byte in front, so that the limit falls into a character wherever one has two bytes.
        is( $node->safe_psql($db, qq{SET client_encoding = '$client';
            SELECT ratchet.fail(id, token, 'x' || repeat('$char', 9000), false) FROM (SELECT id, token FROM ratchet.job WHERE kind = 'k$char') j;
            SELECT octet_length(last_error) <= 8192, octet_length(last_error) > 8100, last_error = left('x' || repeat('$char', 9000), length(last_error)),
                   (octet_length(last_error) - 1) % octet_length('$char') FROM ratchet.job WHERE kind = 'k$char'}),
            $encoding eq 'SQL_ASCII' ? "failed\nt|t|t|" . ((8192 - 1) % 2) : "failed\nt|t|t|0", "$how: an error is clipped between characters in $encoding");
    }
    my $utf8 = 'utf8';
    $sql->("CREATE DATABASE $utf8 TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C.UTF-8'");
    is( $node->safe_psql($utf8, qq{CREATE EXTENSION ratchet; SELECT count(ratchet.enqueue('k'));
        SELECT ratchet.fail(id, token, repeat(E'\\U0001F600', 9000), false) FROM ratchet.claim('default', 'w');
        SELECT octet_length(last_error) BETWEEN 8180 AND 8192, octet_length(last_error) % 4 FROM ratchet.job}), "1\nfailed\nt|0", "$how: and in UTF8");
    $node->stop;
}

done_testing();
