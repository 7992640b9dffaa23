CREATE TABLE public.access (
    role character varying(63) NOT NULL,
    namespace character varying(63)
);
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.alerts (
    run_id character varying(128) NOT NULL,
    rule character varying(64) NOT NULL,
    first_seen double precision NOT NULL,
    last_seen double precision NOT NULL,
    cleared_at double precision,
    first_step bigint,
    message text NOT NULL,
    action character varying(16) NOT NULL,
    acknowledged_by character varying(253),
    acknowledged_at double precision
);
CREATE TABLE public.attempts (
    run_id character varying(128) NOT NULL,
    attempt integer NOT NULL,
    started_at double precision NOT NULL,
    ended_at double precision,
    step_from bigint,
    step_to bigint,
    reason character varying(64),
    message text,
    exit_code integer,
    counted boolean
);
CREATE TABLE public.checkpoints (
    run_id character varying(128) NOT NULL,
    step bigint NOT NULL,
    attempt integer NOT NULL,
    state character varying(16) NOT NULL,
    uri text NOT NULL,
    updated_at double precision NOT NULL,
    size_bytes bigint,
    files integer,
    spec_digest character varying(64),
    metrics json NOT NULL,
    decision text
);
CREATE TABLE public.curve_points (
    ts double precision NOT NULL,
    value double precision,
    step bigint NOT NULL,
    run_key integer NOT NULL,
    metric_id integer NOT NULL,
    attempt integer NOT NULL,
    flag character varying(4),
    CONSTRAINT ck_curve_points_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))),
    CONSTRAINT ck_curve_points_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))),
    CONSTRAINT ck_curve_points_ts CHECK (((ts >= (0)::double precision) AND (ts <= ('253402300799'::bigint)::double precision))),
    CONSTRAINT ck_curve_points_value CHECK (((value > '-Infinity'::double precision) AND (value < 'Infinity'::double precision)))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.01', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
CREATE TABLE public.deliveries (
    run_id character varying(128) NOT NULL,
    spool character varying(64) NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.evaluations (
    evaluation_id character varying(128) NOT NULL,
    set_name character varying(63) NOT NULL,
    subject text NOT NULL,
    run_id character varying(128),
    step bigint,
    created_at double precision NOT NULL,
    source text NOT NULL,
    sampling json NOT NULL,
    results json NOT NULL
);
CREATE TABLE public.events (
    run_id character varying(128) NOT NULL,
    dedup_key character varying(128) NOT NULL,
    ts double precision NOT NULL,
    type character varying(16) NOT NULL,
    reason character varying(64) NOT NULL,
    message text NOT NULL,
    attempt integer,
    step bigint
);
CREATE TABLE public.latest (
    run_id character varying(128) NOT NULL,
    metric_id integer NOT NULL,
    step bigint NOT NULL,
    attempt integer NOT NULL,
    ts double precision NOT NULL,
    value double precision,
    flag character varying(4),
    rolled_to bigint DEFAULT '0'::bigint NOT NULL,
    thinned_to bigint DEFAULT '0'::bigint NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
CREATE TABLE public.metric_names (
    metric_id integer NOT NULL,
    name character varying(512) NOT NULL
);
CREATE SEQUENCE public.metric_names_metric_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.metric_names_metric_id_seq OWNED BY public.metric_names.metric_id;
CREATE TABLE public.notices (
    run_id character varying(128) NOT NULL,
    rule character varying(64) NOT NULL,
    first_seen double precision NOT NULL,
    receiver character varying(63) NOT NULL,
    kind character varying(8) NOT NULL,
    made_at double precision NOT NULL,
    due_at double precision,
    sent_at double precision,
    tries integer NOT NULL,
    error text
);
CREATE TABLE public.points (
    run_id character varying(128) NOT NULL,
    metric_id integer NOT NULL,
    step bigint NOT NULL,
    attempt integer NOT NULL,
    ts double precision NOT NULL,
    value double precision,
    flag character varying(4)
)
WITH (autovacuum_vacuum_insert_scale_factor='0.01', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
CREATE TABLE public.rollups (
    run_id character varying(128) NOT NULL,
    metric_id integer NOT NULL,
    width integer NOT NULL,
    bucket bigint NOT NULL,
    step_from bigint NOT NULL,
    step_to bigint NOT NULL,
    low double precision,
    high double precision,
    total double precision,
    finite bigint NOT NULL,
    count bigint NOT NULL,
    last double precision,
    flag character varying(4)
)
WITH (autovacuum_vacuum_insert_scale_factor='0.01', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
CREATE TABLE public.run_keys (
    run_key integer NOT NULL,
    run_id character varying(128) NOT NULL
);
CREATE SEQUENCE public.run_keys_run_key_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.run_keys_run_key_seq OWNED BY public.run_keys.run_key;
CREATE TABLE public.runs (
    run_id character varying(128) NOT NULL,
    name character varying(253) NOT NULL,
    namespace character varying(63) NOT NULL,
    spec json NOT NULL,
    config json,
    state character varying(32) NOT NULL,
    reason character varying(64),
    message text,
    created_at double precision NOT NULL,
    started_at double precision,
    ended_at double precision,
    tags json NOT NULL,
    total_steps bigint,
    owner character varying(253)
);
CREATE TABLE public.samples (
    run_id character varying(128) NOT NULL,
    step bigint NOT NULL,
    attempt integer NOT NULL,
    key text NOT NULL,
    rows integer NOT NULL,
    size_bytes bigint NOT NULL,
    ts double precision NOT NULL
);
ALTER TABLE ONLY public.metric_names ALTER COLUMN metric_id SET DEFAULT nextval('public.metric_names_metric_id_seq'::regclass);
ALTER TABLE ONLY public.run_keys ALTER COLUMN run_key SET DEFAULT nextval('public.run_keys_run_key_seq'::regclass);
INSERT INTO public.alembic_version VALUES
	('0006');
INSERT INTO public.attempts VALUES
	('r1', 1, 1, NULL, 0, 40, 'Killed', NULL, NULL, true),
	('r1', 2, 2, NULL, 30, 60, 'Killed', NULL, NULL, true);
INSERT INTO public.checkpoints VALUES
	('r1', 40, 1, 'committed', 's3://b/r1', 1, NULL, NULL, NULL, '{"acc": 0.5}', NULL);
INSERT INTO public.events VALUES
	('r1', 'e', 1, 'Normal', 'Started', 'It''s on.', 1, NULL);
INSERT INTO public.latest VALUES
	('r1', 1, 60, 2, 1, NULL, 'nan', 0, 0),
	('r1', 2, 60, 2, 1, NULL, 'nan', 0, 0);
INSERT INTO public.metric_names VALUES
	(1, 'm/1'),
	(2, 'm/2');
INSERT INTO public.points VALUES
	('r1', 1, 1, 1, 1, 1, NULL),
	('r1', 1, 2, 1, 2, 2, NULL),
	('r1', 1, 3, 1, 3, 3, NULL),
	('r1', 1, 4, 1, 4, 4, NULL),
	('r1', 1, 5, 1, 5, 5, NULL),
	('r1', 1, 6, 1, 6, 6, NULL),
	('r1', 1, 7, 1, 7, 7, NULL),
	('r1', 1, 8, 1, 8, 8, NULL),
	('r1', 1, 9, 1, 9, 9, NULL),
	('r1', 1, 10, 1, 10, 10, NULL),
	('r1', 1, 11, 1, 11, 11, NULL),
	('r1', 1, 12, 1, 12, 12, NULL),
	('r1', 1, 13, 1, 13, 13, NULL),
	('r1', 1, 14, 1, 14, 14, NULL),
	('r1', 1, 15, 1, 15, 15, NULL),
	('r1', 1, 16, 1, 16, 16, NULL),
	('r1', 1, 17, 1, 17, 17, NULL),
	('r1', 1, 18, 1, 18, 18, NULL),
	('r1', 1, 19, 1, 19, 19, NULL),
	('r1', 1, 20, 1, 20, 20, NULL),
	('r1', 1, 21, 1, 21, 21, NULL),
	('r1', 1, 22, 1, 22, 22, NULL),
	('r1', 1, 23, 1, 23, 23, NULL),
	('r1', 1, 24, 1, 24, 24, NULL),
	('r1', 1, 25, 1, 25, 25, NULL),
	('r1', 1, 26, 1, 26, 26, NULL),
	('r1', 1, 27, 1, 27, 27, NULL),
	('r1', 1, 28, 1, 28, 28, NULL),
	('r1', 1, 29, 1, 29, 29, NULL),
	('r1', 1, 30, 1, 30, 30, NULL),
	('r1', 1, 31, 1, 31, 31, NULL),
	('r1', 1, 32, 1, 32, 32, NULL),
	('r1', 1, 33, 1, 33, 33, NULL),
	('r1', 1, 34, 1, 34, 34, NULL),
	('r1', 1, 35, 1, 35, 35, NULL),
	('r1', 1, 36, 1, 36, 36, NULL),
	('r1', 1, 37, 1, 37, 37, NULL),
	('r1', 1, 38, 1, 38, 38, NULL),
	('r1', 1, 39, 1, 39, 39, NULL),
	('r1', 1, 40, 1, 1, NULL, 'nan'),
	('r1', 2, 1, 1, 1, 2, NULL),
	('r1', 2, 2, 1, 2, 4, NULL),
	('r1', 2, 3, 1, 3, 6, NULL),
	('r1', 2, 4, 1, 4, 8, NULL),
	('r1', 2, 5, 1, 5, 10, NULL),
	('r1', 2, 6, 1, 6, 12, NULL),
	('r1', 2, 7, 1, 7, 14, NULL),
	('r1', 2, 8, 1, 8, 16, NULL),
	('r1', 2, 9, 1, 9, 18, NULL),
	('r1', 2, 10, 1, 10, 20, NULL),
	('r1', 2, 11, 1, 11, 22, NULL),
	('r1', 2, 12, 1, 12, 24, NULL),
	('r1', 2, 13, 1, 13, 26, NULL),
	('r1', 2, 14, 1, 14, 28, NULL),
	('r1', 2, 15, 1, 15, 30, NULL),
	('r1', 2, 16, 1, 16, 32, NULL),
	('r1', 2, 17, 1, 17, 34, NULL),
	('r1', 2, 18, 1, 18, 36, NULL),
	('r1', 2, 19, 1, 19, 38, NULL),
	('r1', 2, 20, 1, 20, 40, NULL),
	('r1', 2, 21, 1, 21, 42, NULL),
	('r1', 2, 22, 1, 22, 44, NULL),
	('r1', 2, 23, 1, 23, 46, NULL),
	('r1', 2, 24, 1, 24, 48, NULL),
	('r1', 2, 25, 1, 25, 50, NULL),
	('r1', 2, 26, 1, 26, 52, NULL),
	('r1', 2, 27, 1, 27, 54, NULL),
	('r1', 2, 28, 1, 28, 56, NULL),
	('r1', 2, 29, 1, 29, 58, NULL),
	('r1', 2, 30, 1, 30, 60, NULL),
	('r1', 2, 31, 1, 31, 62, NULL),
	('r1', 2, 32, 1, 32, 64, NULL),
	('r1', 2, 33, 1, 33, 66, NULL),
	('r1', 2, 34, 1, 34, 68, NULL),
	('r1', 2, 35, 1, 35, 70, NULL),
	('r1', 2, 36, 1, 36, 72, NULL),
	('r1', 2, 37, 1, 37, 74, NULL),
	('r1', 2, 38, 1, 38, 76, NULL),
	('r1', 2, 39, 1, 39, 78, NULL),
	('r1', 2, 40, 1, 1, NULL, 'nan'),
	('r1', 1, 31, 2, 31, 62, NULL),
	('r1', 1, 32, 2, 32, 64, NULL),
	('r1', 1, 33, 2, 33, 66, NULL),
	('r1', 1, 34, 2, 34, 68, NULL),
	('r1', 1, 35, 2, 35, 70, NULL),
	('r1', 1, 36, 2, 36, 72, NULL),
	('r1', 1, 37, 2, 37, 74, NULL),
	('r1', 1, 38, 2, 38, 76, NULL),
	('r1', 1, 39, 2, 39, 78, NULL),
	('r1', 1, 40, 2, 40, 80, NULL),
	('r1', 1, 41, 2, 41, 82, NULL),
	('r1', 1, 42, 2, 42, 84, NULL),
	('r1', 1, 43, 2, 43, 86, NULL),
	('r1', 1, 44, 2, 44, 88, NULL),
	('r1', 1, 45, 2, 45, 90, NULL),
	('r1', 1, 46, 2, 46, 92, NULL),
	('r1', 1, 47, 2, 47, 94, NULL),
	('r1', 1, 48, 2, 48, 96, NULL),
	('r1', 1, 49, 2, 49, 98, NULL),
	('r1', 1, 50, 2, 50, 100, NULL),
	('r1', 1, 51, 2, 51, 102, NULL),
	('r1', 1, 52, 2, 52, 104, NULL),
	('r1', 1, 53, 2, 53, 106, NULL),
	('r1', 1, 54, 2, 54, 108, NULL),
	('r1', 1, 55, 2, 55, 110, NULL),
	('r1', 1, 56, 2, 56, 112, NULL),
	('r1', 1, 57, 2, 57, 114, NULL),
	('r1', 1, 58, 2, 58, 116, NULL),
	('r1', 1, 59, 2, 59, 118, NULL),
	('r1', 1, 60, 2, 1, NULL, 'nan'),
	('r1', 2, 31, 2, 31, 124, NULL),
	('r1', 2, 32, 2, 32, 128, NULL),
	('r1', 2, 33, 2, 33, 132, NULL),
	('r1', 2, 34, 2, 34, 136, NULL),
	('r1', 2, 35, 2, 35, 140, NULL),
	('r1', 2, 36, 2, 36, 144, NULL),
	('r1', 2, 37, 2, 37, 148, NULL),
	('r1', 2, 38, 2, 38, 152, NULL),
	('r1', 2, 39, 2, 39, 156, NULL),
	('r1', 2, 40, 2, 40, 160, NULL),
	('r1', 2, 41, 2, 41, 164, NULL),
	('r1', 2, 42, 2, 42, 168, NULL),
	('r1', 2, 43, 2, 43, 172, NULL),
	('r1', 2, 44, 2, 44, 176, NULL),
	('r1', 2, 45, 2, 45, 180, NULL),
	('r1', 2, 46, 2, 46, 184, NULL),
	('r1', 2, 47, 2, 47, 188, NULL),
	('r1', 2, 48, 2, 48, 192, NULL),
	('r1', 2, 49, 2, 49, 196, NULL),
	('r1', 2, 50, 2, 50, 200, NULL),
	('r1', 2, 51, 2, 51, 204, NULL),
	('r1', 2, 52, 2, 52, 208, NULL),
	('r1', 2, 53, 2, 53, 212, NULL),
	('r1', 2, 54, 2, 54, 216, NULL),
	('r1', 2, 55, 2, 55, 220, NULL),
	('r1', 2, 56, 2, 56, 224, NULL),
	('r1', 2, 57, 2, 57, 228, NULL),
	('r1', 2, 58, 2, 58, 232, NULL),
	('r1', 2, 59, 2, 59, 236, NULL),
	('r1', 2, 60, 2, 1, NULL, 'nan');
INSERT INTO public.runs VALUES
	('r1', 'job', 'default', '{"a": [1, null]}', NULL, 'Succeeded', NULL, NULL, 1, 1, NULL, '{"seed": "0"}', 60, NULL),
	('r2', 'job', 'default', '{"a": [1, null]}', NULL, 'Running', NULL, NULL, 2, 2, NULL, '{"seed": "0"}', 60, NULL);
INSERT INTO public.samples VALUES
	('r1', 40, 1, 'r1/samples/x.parquet', 16, 1234, 1);
SELECT pg_catalog.setval('public.metric_names_metric_id_seq', 2, true);
SELECT pg_catalog.setval('public.run_keys_run_key_seq', 1, false);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE public.alerts
    ADD CONSTRAINT ck_alerts_acknowledged_at CHECK (((acknowledged_at >= (0)::double precision) AND (acknowledged_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.alerts
    ADD CONSTRAINT ck_alerts_cleared_at CHECK (((cleared_at >= (0)::double precision) AND (cleared_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.alerts
    ADD CONSTRAINT ck_alerts_first_seen CHECK (((first_seen >= (0)::double precision) AND (first_seen <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.alerts
    ADD CONSTRAINT ck_alerts_first_step CHECK (((first_step >= 0) AND (first_step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.alerts
    ADD CONSTRAINT ck_alerts_last_seen CHECK (((last_seen >= (0)::double precision) AND (last_seen <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.attempts
    ADD CONSTRAINT ck_attempts_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))) NOT VALID;
ALTER TABLE public.attempts
    ADD CONSTRAINT ck_attempts_ended_at CHECK (((ended_at >= (0)::double precision) AND (ended_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.attempts
    ADD CONSTRAINT ck_attempts_started_at CHECK (((started_at >= (0)::double precision) AND (started_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.attempts
    ADD CONSTRAINT ck_attempts_step_from CHECK (((step_from >= 0) AND (step_from <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.attempts
    ADD CONSTRAINT ck_attempts_step_to CHECK (((step_to >= 0) AND (step_to <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.checkpoints
    ADD CONSTRAINT ck_checkpoints_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))) NOT VALID;
ALTER TABLE public.checkpoints
    ADD CONSTRAINT ck_checkpoints_files CHECK ((files >= 0)) NOT VALID;
ALTER TABLE public.checkpoints
    ADD CONSTRAINT ck_checkpoints_metrics CHECK (((json_typeof(metrics) = 'object'::text) AND (octet_length((metrics)::text) <= 4194304))) NOT VALID;
ALTER TABLE public.checkpoints
    ADD CONSTRAINT ck_checkpoints_size_bytes CHECK ((size_bytes >= 0)) NOT VALID;
ALTER TABLE public.checkpoints
    ADD CONSTRAINT ck_checkpoints_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.checkpoints
    ADD CONSTRAINT ck_checkpoints_updated_at CHECK (((updated_at >= (0)::double precision) AND (updated_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.deliveries
    ADD CONSTRAINT ck_deliveries_seq CHECK ((seq >= 0)) NOT VALID;
ALTER TABLE public.evaluations
    ADD CONSTRAINT ck_evaluations_created_at CHECK (((created_at >= (0)::double precision) AND (created_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.evaluations
    ADD CONSTRAINT ck_evaluations_results CHECK (((json_typeof(results) = 'object'::text) AND (octet_length((results)::text) <= 4194304))) NOT VALID;
ALTER TABLE public.evaluations
    ADD CONSTRAINT ck_evaluations_sampling CHECK (((json_typeof(sampling) = 'object'::text) AND (octet_length((sampling)::text) <= 4194304))) NOT VALID;
ALTER TABLE public.evaluations
    ADD CONSTRAINT ck_evaluations_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.events
    ADD CONSTRAINT ck_events_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))) NOT VALID;
ALTER TABLE public.events
    ADD CONSTRAINT ck_events_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.events
    ADD CONSTRAINT ck_events_ts CHECK (((ts >= (0)::double precision) AND (ts <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.latest
    ADD CONSTRAINT ck_latest_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))) NOT VALID;
ALTER TABLE public.latest
    ADD CONSTRAINT ck_latest_rolled_to CHECK (((rolled_to >= 0) AND (rolled_to <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.latest
    ADD CONSTRAINT ck_latest_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.latest
    ADD CONSTRAINT ck_latest_thinned_to CHECK (((thinned_to >= 0) AND (thinned_to <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.latest
    ADD CONSTRAINT ck_latest_ts CHECK (((ts >= (0)::double precision) AND (ts <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.latest
    ADD CONSTRAINT ck_latest_value CHECK (((value > '-Infinity'::double precision) AND (value < 'Infinity'::double precision))) NOT VALID;
ALTER TABLE public.points
    ADD CONSTRAINT ck_points_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))) NOT VALID;
ALTER TABLE public.points
    ADD CONSTRAINT ck_points_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.points
    ADD CONSTRAINT ck_points_ts CHECK (((ts >= (0)::double precision) AND (ts <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.points
    ADD CONSTRAINT ck_points_value CHECK (((value > '-Infinity'::double precision) AND (value < 'Infinity'::double precision))) NOT VALID;
ALTER TABLE public.rollups
    ADD CONSTRAINT ck_rollups_bucket CHECK (((bucket >= 0) AND (bucket <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.rollups
    ADD CONSTRAINT ck_rollups_count CHECK ((count >= 0)) NOT VALID;
ALTER TABLE public.rollups
    ADD CONSTRAINT ck_rollups_finite CHECK ((finite >= 0)) NOT VALID;
ALTER TABLE public.rollups
    ADD CONSTRAINT ck_rollups_step_from CHECK (((step_from >= 0) AND (step_from <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.rollups
    ADD CONSTRAINT ck_rollups_step_to CHECK (((step_to >= 0) AND (step_to <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.rollups
    ADD CONSTRAINT ck_rollups_width CHECK (((width >= 1) AND (width <= 1048576))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_config CHECK (((json_typeof(config) = ANY (ARRAY['object'::text, 'null'::text])) AND (octet_length((config)::text) <= 4194304))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_created_at CHECK (((created_at >= (0)::double precision) AND (created_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_ended_at CHECK (((ended_at >= (0)::double precision) AND (ended_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_name CHECK (((name)::text !~ '[[:cntrl:]]'::text)) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_run_id CHECK (((run_id)::text ~ '^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$'::text)) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_spec CHECK (((json_typeof(spec) = 'object'::text) AND (octet_length((spec)::text) <= 4194304))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_started_at CHECK (((started_at >= (0)::double precision) AND (started_at <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_tags CHECK (((json_typeof(tags) = 'object'::text) AND (octet_length((tags)::text) <= 65536))) NOT VALID;
ALTER TABLE public.runs
    ADD CONSTRAINT ck_runs_total_steps CHECK (((total_steps >= 0) AND (total_steps <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.samples
    ADD CONSTRAINT ck_samples_attempt CHECK (((attempt >= 0) AND (attempt <= 9999))) NOT VALID;
ALTER TABLE public.samples
    ADD CONSTRAINT ck_samples_rows CHECK ((rows >= 0)) NOT VALID;
ALTER TABLE public.samples
    ADD CONSTRAINT ck_samples_size_bytes CHECK ((size_bytes >= 0)) NOT VALID;
ALTER TABLE public.samples
    ADD CONSTRAINT ck_samples_step CHECK (((step >= 0) AND (step <= '9007199254740992'::bigint))) NOT VALID;
ALTER TABLE public.samples
    ADD CONSTRAINT ck_samples_ts CHECK (((ts >= (0)::double precision) AND (ts <= ('253402300799'::bigint)::double precision))) NOT VALID;
ALTER TABLE ONLY public.access
    ADD CONSTRAINT pk_access PRIMARY KEY (role);
ALTER TABLE ONLY public.alerts
    ADD CONSTRAINT pk_alerts PRIMARY KEY (run_id, rule, first_seen);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (run_id, attempt);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, step);
ALTER TABLE ONLY public.curve_points
    ADD CONSTRAINT pk_curve_points PRIMARY KEY (run_key, metric_id, step, attempt);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT pk_deliveries PRIMARY KEY (run_id, spool);
ALTER TABLE ONLY public.evaluations
    ADD CONSTRAINT pk_evaluations PRIMARY KEY (evaluation_id, set_name);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (run_id, dedup_key);
ALTER TABLE ONLY public.latest
    ADD CONSTRAINT pk_latest PRIMARY KEY (run_id, metric_id);
ALTER TABLE ONLY public.metric_names
    ADD CONSTRAINT pk_metric_names PRIMARY KEY (metric_id);
ALTER TABLE ONLY public.notices
    ADD CONSTRAINT pk_notices PRIMARY KEY (run_id, rule, first_seen, receiver, kind);
ALTER TABLE ONLY public.points
    ADD CONSTRAINT pk_points PRIMARY KEY (run_id, metric_id, step, attempt);
ALTER TABLE ONLY public.rollups
    ADD CONSTRAINT pk_rollups PRIMARY KEY (run_id, metric_id, width, bucket);
ALTER TABLE ONLY public.run_keys
    ADD CONSTRAINT pk_run_keys PRIMARY KEY (run_key);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT pk_runs PRIMARY KEY (run_id);
ALTER TABLE ONLY public.samples
    ADD CONSTRAINT pk_samples PRIMARY KEY (run_id, step, attempt);
ALTER TABLE ONLY public.metric_names
    ADD CONSTRAINT uq_metric_names_name UNIQUE (name);
ALTER TABLE ONLY public.run_keys
    ADD CONSTRAINT uq_run_keys_run_id UNIQUE (run_id);
CREATE INDEX ix_evaluations_run_id ON public.evaluations USING btree (run_id);
CREATE INDEX ix_events_run_id_ts ON public.events USING btree (run_id, ts);
CREATE INDEX ix_runs_created_at ON public.runs USING btree (created_at);
CREATE INDEX ix_runs_namespace_name ON public.runs USING btree (namespace, name);
