# RatchetNode: servers with ratchet in them for the TAP tests, and ways to wait for what happens in one.
#
#   use RatchetNode;
#   my $node = ratchet_node('main', preload => 1);
#   poll_until($node, 'SELECT count(*) FROM ratchet.worker', '1');
#
# "test/run tap" sees to it that every server finds the build under test; with "make installcheck" it is the installed one.

package RatchetNode;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(ratchet_node poll_until kill_backend log_position crash_server crash_backend forget_session
  sql_error sql_fails);

# A running server with database postgres and the extension in it.
#
#   preload    true: shared_preload_libraries = 'ratchet'; a string is taken as the whole list
#   conf       more lines for postgresql.conf
#   extension  false: do not create the extension
#   start      false: do not start the server (nor create the extension)
#   streaming  true: fit to be the primary of standbys
sub ratchet_node
{
    my ($name, %opts) = @_;
    my $preload = $opts{preload} // 0;
    my $node    = PostgreSQL::Test::Cluster->new($name);

    $node->init(
        extra            => [ '--locale=C.UTF-8', '--encoding=UTF8' ],
        allows_streaming => $opts{streaming} // 0);

    # Cluster turns the restart off; our tests are about what is there after it.
    $node->append_conf('postgresql.conf', "restart_after_crash = on\nmax_prepared_transactions = 10");
    # The small number that Cluster gives to a primary is soon used up by workers and waiting sessions.
    $node->append_conf('postgresql.conf', 'max_connections = 50');
    $node->append_conf('postgresql.conf', sprintf("shared_preload_libraries = '%s'", $preload eq '1' ? 'ratchet' : $preload))
      if $preload;
    $node->append_conf('postgresql.conf', $opts{conf}) if defined $opts{conf};

    if ($opts{start} // 1)
    {
        $node->start;
        $node->safe_psql('postgres', 'CREATE EXTENSION ratchet') if $opts{extension} // 1;
    }
    return $node;
}

# Wait until a query answers what is expected ('t' if not said); errors, such as no connection while the server restarts,
# only mean that it is not there yet. Returns whether it came true in time, and says what it last saw if not.
sub poll_until
{
    my ($node, $query, $expected, $dbname) = @_;
    return $node->poll_query_until($dbname // 'postgres', $query, $expected // 't');
}

# Send a signal to the one server process that a condition on pg_stat_activity finds; returns its pid.
sub kill_backend
{
    my ($node, $signal, $condition) = @_;
    my @pids = split /\n/, $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $condition");

    BAIL_OUT("not one process, but " . @pids . ", where $condition") unless @pids == 1;
    kill $signal, $pids[0] or BAIL_OUT("could not signal process $pids[0]: $!");
    return $pids[0];
}

# Kill the postmaster the hard way, and start again as soon as its children have noticed.
sub crash_server
{
    my ($node) = @_;
    my $pid = $node->{_pid};

    $node->kill9;
    for (1 .. 600)
    {
        # Until it is really gone the new one believes that its lock file is in use; then come the shared memory's users.
        if (!kill 0, $pid)
        {
            return if $node->start(fail_ok => 1);
        }
        usleep(100_000);
    }
    BAIL_OUT('the server does not come back after a crash');
}

# Kill the backend of a background_psql session, and wait until the server has restarted itself. The session is over.
sub crash_backend
{
    my ($node, $session) = @_;
    my $pid      = $session->query_safe('SELECT pg_backend_pid()');
    my $position = log_position($node);

    kill 'KILL', $pid or BAIL_OUT("could not kill process $pid: $!");
    $node->wait_for_log(qr/all server processes terminated; reinitializing/, $position);
    poll_until($node, 'SELECT true');
    forget_session($session);
    return;
}

# End what is left of a session that has lost its server.
sub forget_session
{
    my ($session) = @_;
    eval { $session->{run}->kill_kill; };
    return;
}

# Where the server log ends now: $node->wait_for_log($regexp, $position) then looks only at what comes later.
sub log_position
{
    my ($node) = @_;
    return -s $node->logfile;
}

# What a statement fails with, as "SQLSTATE: message" and then the lines of detail, hint and so on; '' if it does not fail.
sub sql_error
{
    my ($node, $dbname, $sql) = @_;
    my $stderr = '';

    # One -c for all of it would be one transaction; a script is not.
    $node->psql($dbname, "\\set VERBOSITY verbose\n$sql", stderr => \$stderr, on_error_stop => 1);
    return $stderr =~ /^(?:psql:[^\n]*?: )?(?:ERROR|FATAL):  (.*)/ms ? $1 : '';
}

# A test: the statement fails with this SQLSTATE, and says something that matches the expression if there is one.
sub sql_fails
{
    my ($node, $dbname, $sql, $sqlstate, $name, $regexp) = @_;
    my $error = sql_error($node, $dbname, $sql);
    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return like($error, defined $regexp ? qr/^\Q$sqlstate\E: .*$regexp/s : qr/^\Q$sqlstate\E: /, $name);
}

1;
