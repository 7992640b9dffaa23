"""Run by Alembic for each upgrade, inside the transaction that `upgrade` holds."""

from alembic import context

from dapo_core.db import schema

connection = context.config.attributes["connection"]
# One transaction for all revisions and their record: a database is never between two of them.
context.configure(connection=connection, target_metadata=schema.metadata, transactional_ddl=True, render_as_batch=True)
context.run_migrations()
