# Starts Postgres, the first time with an empty database `dapo` and the login that owns it. It needs nothing of an image
# but Postgres' programs on the path, so that any image will do.
set -euo pipefail
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    rm -rf "$PGDATA" "$PGDATA.new"
    initdb --pgdata="$PGDATA.new" --username=postgres --pwfile=<(printf %s "$POSTGRES_PASSWORD") \
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 --data-checksums
    postgres --single -D "$PGDATA.new" postgres >/dev/null <<SQL
CREATE ROLE dapo_owner LOGIN CREATEROLE PASSWORD '$OWNER_PASSWORD'
CREATE DATABASE dapo OWNER dapo_owner
SQL
    # Under its name only when it is whole: a start that was interrupted begins again.
    mv "$PGDATA.new" "$PGDATA"
fi
exec postgres -D "$PGDATA" -c config_file=/etc/dapo/postgresql.conf
