# Starts Postgres; on the first start it creates the database `dapo` and the login that owns it, on later ones it sets
# their passwords to those of the Secret. Any image with Postgres' programs on the path works.
set -euo pipefail
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    rm -rf "$PGDATA" "$PGDATA.new"
    initdb --pgdata="$PGDATA.new" --username=postgres --pwfile=<(printf %s "$POSTGRES_PASSWORD") \
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 --data-checksums
    postgres --single -D "$PGDATA.new" postgres >/dev/null <<SQL
CREATE ROLE dapo_owner LOGIN CREATEROLE PASSWORD '$OWNER_PASSWORD'
CREATE DATABASE dapo OWNER dapo_owner
SQL
    # Renamed only once it is complete: an interrupted start runs again.
    mv "$PGDATA.new" "$PGDATA"
else
    postgres --single -D "$PGDATA" postgres >/dev/null <<SQL
ALTER ROLE postgres PASSWORD '$POSTGRES_PASSWORD'
ALTER ROLE dapo_owner PASSWORD '$OWNER_PASSWORD'
SQL
fi
# What the server gives every login: other databases to fill; large objects, which no policy covers; and advisory locks,
# with which one session fills the table of locks that all share.
postgres --single -D "$PGDATA" dapo >/dev/null <<'SQL'
REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC
REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC
DO $$ DECLARE f regprocedure; BEGIN FOR f IN SELECT oid FROM pg_proc WHERE proname ~ '^pg_(try_)?advisory_.*lock' LOOP EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f); END LOOP; END $$
GRANT EXECUTE ON FUNCTION pg_advisory_xact_lock(bigint) TO dapo_owner
SQL
exec postgres -D "$PGDATA" -c config_file=/etc/dapo/postgresql.conf
