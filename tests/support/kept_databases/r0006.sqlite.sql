BEGIN TRANSACTION;
CREATE TABLE access (
	role VARCHAR(63) NOT NULL, 
	namespace VARCHAR(63), 
	CONSTRAINT pk_access PRIMARY KEY (role)
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0006');
CREATE TABLE alerts (
	run_id VARCHAR(128) NOT NULL, 
	rule VARCHAR(64) NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	last_seen DOUBLE NOT NULL, 
	cleared_at DOUBLE, 
	first_step BIGINT, 
	message TEXT NOT NULL, 
	action VARCHAR(16) NOT NULL, 
	acknowledged_by VARCHAR(253), 
	acknowledged_at DOUBLE, 
	CONSTRAINT pk_alerts PRIMARY KEY (run_id, rule, first_seen)
);
CREATE TABLE attempts (
	run_id VARCHAR(128) NOT NULL, 
	attempt INTEGER NOT NULL, 
	started_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	step_from BIGINT, 
	step_to BIGINT, 
	reason VARCHAR(64), 
	message TEXT, 
	exit_code INTEGER, 
	counted BOOLEAN, 
	CONSTRAINT pk_attempts PRIMARY KEY (run_id, attempt)
);
INSERT INTO "attempts" VALUES('r1',1,1.0,NULL,0,40,'Killed',NULL,NULL,1);
INSERT INTO "attempts" VALUES('r1',2,2.0,NULL,30,60,'Killed',NULL,NULL,1);
CREATE TABLE checkpoints (
	run_id VARCHAR(128) NOT NULL, 
	step BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	uri TEXT NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	size_bytes BIGINT, 
	files INTEGER, 
	spec_digest VARCHAR(64), 
	metrics JSON NOT NULL, 
	decision TEXT, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (run_id, step)
);
INSERT INTO "checkpoints" VALUES('r1',40,1,'committed','s3://b/r1',1.0,NULL,NULL,NULL,'{"acc": 0.5}',NULL);
CREATE TABLE curve_points (
	ts DOUBLE NOT NULL, 
	value DOUBLE, 
	step BIGINT NOT NULL, 
	run_key INTEGER NOT NULL, 
	metric_id INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	flag VARCHAR(4), 
	CONSTRAINT pk_curve_points PRIMARY KEY (run_key, metric_id, step, attempt)
)
 WITHOUT ROWID

;
CREATE TABLE deliveries (
	run_id VARCHAR(128) NOT NULL, 
	spool VARCHAR(64) NOT NULL, 
	seq BIGINT NOT NULL, 
	CONSTRAINT pk_deliveries PRIMARY KEY (run_id, spool)
);
CREATE TABLE evaluations (
	evaluation_id VARCHAR(128) NOT NULL, 
	set_name VARCHAR(63) NOT NULL, 
	subject TEXT NOT NULL, 
	run_id VARCHAR(128), 
	step BIGINT, 
	created_at DOUBLE NOT NULL, 
	source TEXT NOT NULL, 
	sampling JSON NOT NULL, 
	results JSON NOT NULL, 
	CONSTRAINT pk_evaluations PRIMARY KEY (evaluation_id, set_name)
);
CREATE TABLE events (
	run_id VARCHAR(128) NOT NULL, 
	dedup_key VARCHAR(128) NOT NULL, 
	ts DOUBLE NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	message TEXT NOT NULL, 
	attempt INTEGER, 
	step BIGINT, 
	CONSTRAINT pk_events PRIMARY KEY (run_id, dedup_key)
);
INSERT INTO "events" VALUES('r1','e',1.0,'Normal','Started','It''s on.',1,NULL);
CREATE TABLE latest (
	run_id VARCHAR(128) NOT NULL, 
	metric_id INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	ts DOUBLE NOT NULL, 
	value DOUBLE, 
	flag VARCHAR(4), rolled_to BIGINT DEFAULT '0' NOT NULL, thinned_to BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_latest PRIMARY KEY (run_id, metric_id)
)
 WITHOUT ROWID

;
INSERT INTO "latest" VALUES('r1',1,60,2,1.0,NULL,'nan',0,0);
INSERT INTO "latest" VALUES('r1',2,60,2,1.0,NULL,'nan',0,0);
CREATE TABLE metric_names (
	metric_id INTEGER NOT NULL, 
	name VARCHAR(512) NOT NULL, 
	CONSTRAINT pk_metric_names PRIMARY KEY (metric_id), 
	CONSTRAINT uq_metric_names_name UNIQUE (name)
);
INSERT INTO "metric_names" VALUES(1,'m/1');
INSERT INTO "metric_names" VALUES(2,'m/2');
CREATE TABLE notices (
	run_id VARCHAR(128) NOT NULL, 
	rule VARCHAR(64) NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	receiver VARCHAR(63) NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	made_at DOUBLE NOT NULL, 
	due_at DOUBLE, 
	sent_at DOUBLE, 
	tries INTEGER NOT NULL, 
	error TEXT, 
	CONSTRAINT pk_notices PRIMARY KEY (run_id, rule, first_seen, receiver, kind)
);
CREATE TABLE points (
	run_id VARCHAR(128) NOT NULL, 
	metric_id INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	ts DOUBLE NOT NULL, 
	value DOUBLE, 
	flag VARCHAR(4), 
	CONSTRAINT pk_points PRIMARY KEY (run_id, metric_id, step, attempt)
)
 WITHOUT ROWID

;
INSERT INTO "points" VALUES('r1',1,1,1,1.0,1.0,NULL);
INSERT INTO "points" VALUES('r1',1,2,1,2.0,2.0,NULL);
INSERT INTO "points" VALUES('r1',1,3,1,3.0,3.0,NULL);
INSERT INTO "points" VALUES('r1',1,4,1,4.0,4.0,NULL);
INSERT INTO "points" VALUES('r1',1,5,1,5.0,5.0,NULL);
INSERT INTO "points" VALUES('r1',1,6,1,6.0,6.0,NULL);
INSERT INTO "points" VALUES('r1',1,7,1,7.0,7.0,NULL);
INSERT INTO "points" VALUES('r1',1,8,1,8.0,8.0,NULL);
INSERT INTO "points" VALUES('r1',1,9,1,9.0,9.0,NULL);
INSERT INTO "points" VALUES('r1',1,10,1,10.0,10.0,NULL);
INSERT INTO "points" VALUES('r1',1,11,1,11.0,11.0,NULL);
INSERT INTO "points" VALUES('r1',1,12,1,12.0,12.0,NULL);
INSERT INTO "points" VALUES('r1',1,13,1,13.0,13.0,NULL);
INSERT INTO "points" VALUES('r1',1,14,1,14.0,14.0,NULL);
INSERT INTO "points" VALUES('r1',1,15,1,15.0,15.0,NULL);
INSERT INTO "points" VALUES('r1',1,16,1,16.0,16.0,NULL);
INSERT INTO "points" VALUES('r1',1,17,1,17.0,17.0,NULL);
INSERT INTO "points" VALUES('r1',1,18,1,18.0,18.0,NULL);
INSERT INTO "points" VALUES('r1',1,19,1,19.0,19.0,NULL);
INSERT INTO "points" VALUES('r1',1,20,1,20.0,20.0,NULL);
INSERT INTO "points" VALUES('r1',1,21,1,21.0,21.0,NULL);
INSERT INTO "points" VALUES('r1',1,22,1,22.0,22.0,NULL);
INSERT INTO "points" VALUES('r1',1,23,1,23.0,23.0,NULL);
INSERT INTO "points" VALUES('r1',1,24,1,24.0,24.0,NULL);
INSERT INTO "points" VALUES('r1',1,25,1,25.0,25.0,NULL);
INSERT INTO "points" VALUES('r1',1,26,1,26.0,26.0,NULL);
INSERT INTO "points" VALUES('r1',1,27,1,27.0,27.0,NULL);
INSERT INTO "points" VALUES('r1',1,28,1,28.0,28.0,NULL);
INSERT INTO "points" VALUES('r1',1,29,1,29.0,29.0,NULL);
INSERT INTO "points" VALUES('r1',1,30,1,30.0,30.0,NULL);
INSERT INTO "points" VALUES('r1',1,31,1,31.0,31.0,NULL);
INSERT INTO "points" VALUES('r1',1,31,2,31.0,62.0,NULL);
INSERT INTO "points" VALUES('r1',1,32,1,32.0,32.0,NULL);
INSERT INTO "points" VALUES('r1',1,32,2,32.0,64.0,NULL);
INSERT INTO "points" VALUES('r1',1,33,1,33.0,33.0,NULL);
INSERT INTO "points" VALUES('r1',1,33,2,33.0,66.0,NULL);
INSERT INTO "points" VALUES('r1',1,34,1,34.0,34.0,NULL);
INSERT INTO "points" VALUES('r1',1,34,2,34.0,68.0,NULL);
INSERT INTO "points" VALUES('r1',1,35,1,35.0,35.0,NULL);
INSERT INTO "points" VALUES('r1',1,35,2,35.0,70.0,NULL);
INSERT INTO "points" VALUES('r1',1,36,1,36.0,36.0,NULL);
INSERT INTO "points" VALUES('r1',1,36,2,36.0,72.0,NULL);
INSERT INTO "points" VALUES('r1',1,37,1,37.0,37.0,NULL);
INSERT INTO "points" VALUES('r1',1,37,2,37.0,74.0,NULL);
INSERT INTO "points" VALUES('r1',1,38,1,38.0,38.0,NULL);
INSERT INTO "points" VALUES('r1',1,38,2,38.0,76.0,NULL);
INSERT INTO "points" VALUES('r1',1,39,1,39.0,39.0,NULL);
INSERT INTO "points" VALUES('r1',1,39,2,39.0,78.0,NULL);
INSERT INTO "points" VALUES('r1',1,40,1,1.0,NULL,'nan');
INSERT INTO "points" VALUES('r1',1,40,2,40.0,80.0,NULL);
INSERT INTO "points" VALUES('r1',1,41,2,41.0,82.0,NULL);
INSERT INTO "points" VALUES('r1',1,42,2,42.0,84.0,NULL);
INSERT INTO "points" VALUES('r1',1,43,2,43.0,86.0,NULL);
INSERT INTO "points" VALUES('r1',1,44,2,44.0,88.0,NULL);
INSERT INTO "points" VALUES('r1',1,45,2,45.0,90.0,NULL);
INSERT INTO "points" VALUES('r1',1,46,2,46.0,92.0,NULL);
INSERT INTO "points" VALUES('r1',1,47,2,47.0,94.0,NULL);
INSERT INTO "points" VALUES('r1',1,48,2,48.0,96.0,NULL);
INSERT INTO "points" VALUES('r1',1,49,2,49.0,98.0,NULL);
INSERT INTO "points" VALUES('r1',1,50,2,50.0,100.0,NULL);
INSERT INTO "points" VALUES('r1',1,51,2,51.0,102.0,NULL);
INSERT INTO "points" VALUES('r1',1,52,2,52.0,104.0,NULL);
INSERT INTO "points" VALUES('r1',1,53,2,53.0,106.0,NULL);
INSERT INTO "points" VALUES('r1',1,54,2,54.0,108.0,NULL);
INSERT INTO "points" VALUES('r1',1,55,2,55.0,110.0,NULL);
INSERT INTO "points" VALUES('r1',1,56,2,56.0,112.0,NULL);
INSERT INTO "points" VALUES('r1',1,57,2,57.0,114.0,NULL);
INSERT INTO "points" VALUES('r1',1,58,2,58.0,116.0,NULL);
INSERT INTO "points" VALUES('r1',1,59,2,59.0,118.0,NULL);
INSERT INTO "points" VALUES('r1',1,60,2,1.0,NULL,'nan');
INSERT INTO "points" VALUES('r1',2,1,1,1.0,2.0,NULL);
INSERT INTO "points" VALUES('r1',2,2,1,2.0,4.0,NULL);
INSERT INTO "points" VALUES('r1',2,3,1,3.0,6.0,NULL);
INSERT INTO "points" VALUES('r1',2,4,1,4.0,8.0,NULL);
INSERT INTO "points" VALUES('r1',2,5,1,5.0,10.0,NULL);
INSERT INTO "points" VALUES('r1',2,6,1,6.0,12.0,NULL);
INSERT INTO "points" VALUES('r1',2,7,1,7.0,14.0,NULL);
INSERT INTO "points" VALUES('r1',2,8,1,8.0,16.0,NULL);
INSERT INTO "points" VALUES('r1',2,9,1,9.0,18.0,NULL);
INSERT INTO "points" VALUES('r1',2,10,1,10.0,20.0,NULL);
INSERT INTO "points" VALUES('r1',2,11,1,11.0,22.0,NULL);
INSERT INTO "points" VALUES('r1',2,12,1,12.0,24.0,NULL);
INSERT INTO "points" VALUES('r1',2,13,1,13.0,26.0,NULL);
INSERT INTO "points" VALUES('r1',2,14,1,14.0,28.0,NULL);
INSERT INTO "points" VALUES('r1',2,15,1,15.0,30.0,NULL);
INSERT INTO "points" VALUES('r1',2,16,1,16.0,32.0,NULL);
INSERT INTO "points" VALUES('r1',2,17,1,17.0,34.0,NULL);
INSERT INTO "points" VALUES('r1',2,18,1,18.0,36.0,NULL);
INSERT INTO "points" VALUES('r1',2,19,1,19.0,38.0,NULL);
INSERT INTO "points" VALUES('r1',2,20,1,20.0,40.0,NULL);
INSERT INTO "points" VALUES('r1',2,21,1,21.0,42.0,NULL);
INSERT INTO "points" VALUES('r1',2,22,1,22.0,44.0,NULL);
INSERT INTO "points" VALUES('r1',2,23,1,23.0,46.0,NULL);
INSERT INTO "points" VALUES('r1',2,24,1,24.0,48.0,NULL);
INSERT INTO "points" VALUES('r1',2,25,1,25.0,50.0,NULL);
INSERT INTO "points" VALUES('r1',2,26,1,26.0,52.0,NULL);
INSERT INTO "points" VALUES('r1',2,27,1,27.0,54.0,NULL);
INSERT INTO "points" VALUES('r1',2,28,1,28.0,56.0,NULL);
INSERT INTO "points" VALUES('r1',2,29,1,29.0,58.0,NULL);
INSERT INTO "points" VALUES('r1',2,30,1,30.0,60.0,NULL);
INSERT INTO "points" VALUES('r1',2,31,1,31.0,62.0,NULL);
INSERT INTO "points" VALUES('r1',2,31,2,31.0,124.0,NULL);
INSERT INTO "points" VALUES('r1',2,32,1,32.0,64.0,NULL);
INSERT INTO "points" VALUES('r1',2,32,2,32.0,128.0,NULL);
INSERT INTO "points" VALUES('r1',2,33,1,33.0,66.0,NULL);
INSERT INTO "points" VALUES('r1',2,33,2,33.0,132.0,NULL);
INSERT INTO "points" VALUES('r1',2,34,1,34.0,68.0,NULL);
INSERT INTO "points" VALUES('r1',2,34,2,34.0,136.0,NULL);
INSERT INTO "points" VALUES('r1',2,35,1,35.0,70.0,NULL);
INSERT INTO "points" VALUES('r1',2,35,2,35.0,140.0,NULL);
INSERT INTO "points" VALUES('r1',2,36,1,36.0,72.0,NULL);
INSERT INTO "points" VALUES('r1',2,36,2,36.0,144.0,NULL);
INSERT INTO "points" VALUES('r1',2,37,1,37.0,74.0,NULL);
INSERT INTO "points" VALUES('r1',2,37,2,37.0,148.0,NULL);
INSERT INTO "points" VALUES('r1',2,38,1,38.0,76.0,NULL);
INSERT INTO "points" VALUES('r1',2,38,2,38.0,152.0,NULL);
INSERT INTO "points" VALUES('r1',2,39,1,39.0,78.0,NULL);
INSERT INTO "points" VALUES('r1',2,39,2,39.0,156.0,NULL);
INSERT INTO "points" VALUES('r1',2,40,1,1.0,NULL,'nan');
INSERT INTO "points" VALUES('r1',2,40,2,40.0,160.0,NULL);
INSERT INTO "points" VALUES('r1',2,41,2,41.0,164.0,NULL);
INSERT INTO "points" VALUES('r1',2,42,2,42.0,168.0,NULL);
INSERT INTO "points" VALUES('r1',2,43,2,43.0,172.0,NULL);
INSERT INTO "points" VALUES('r1',2,44,2,44.0,176.0,NULL);
INSERT INTO "points" VALUES('r1',2,45,2,45.0,180.0,NULL);
INSERT INTO "points" VALUES('r1',2,46,2,46.0,184.0,NULL);
INSERT INTO "points" VALUES('r1',2,47,2,47.0,188.0,NULL);
INSERT INTO "points" VALUES('r1',2,48,2,48.0,192.0,NULL);
INSERT INTO "points" VALUES('r1',2,49,2,49.0,196.0,NULL);
INSERT INTO "points" VALUES('r1',2,50,2,50.0,200.0,NULL);
INSERT INTO "points" VALUES('r1',2,51,2,51.0,204.0,NULL);
INSERT INTO "points" VALUES('r1',2,52,2,52.0,208.0,NULL);
INSERT INTO "points" VALUES('r1',2,53,2,53.0,212.0,NULL);
INSERT INTO "points" VALUES('r1',2,54,2,54.0,216.0,NULL);
INSERT INTO "points" VALUES('r1',2,55,2,55.0,220.0,NULL);
INSERT INTO "points" VALUES('r1',2,56,2,56.0,224.0,NULL);
INSERT INTO "points" VALUES('r1',2,57,2,57.0,228.0,NULL);
INSERT INTO "points" VALUES('r1',2,58,2,58.0,232.0,NULL);
INSERT INTO "points" VALUES('r1',2,59,2,59.0,236.0,NULL);
INSERT INTO "points" VALUES('r1',2,60,2,1.0,NULL,'nan');
CREATE TABLE rollups (
	run_id VARCHAR(128) NOT NULL, 
	metric_id INTEGER NOT NULL, 
	width INTEGER NOT NULL, 
	bucket BIGINT NOT NULL, 
	step_from BIGINT NOT NULL, 
	step_to BIGINT NOT NULL, 
	low DOUBLE, 
	high DOUBLE, 
	total DOUBLE, 
	finite BIGINT NOT NULL, 
	count BIGINT NOT NULL, 
	last DOUBLE, 
	flag VARCHAR(4), 
	CONSTRAINT pk_rollups PRIMARY KEY (run_id, metric_id, width, bucket)
)
 WITHOUT ROWID

;
CREATE TABLE run_keys (
	run_key INTEGER NOT NULL, 
	run_id VARCHAR(128) NOT NULL, 
	CONSTRAINT pk_run_keys PRIMARY KEY (run_key), 
	CONSTRAINT uq_run_keys_run_id UNIQUE (run_id)
);
CREATE TABLE runs (
	run_id VARCHAR(128) NOT NULL, 
	name VARCHAR(253) NOT NULL, 
	namespace VARCHAR(63) NOT NULL, 
	spec JSON NOT NULL, 
	config JSON, 
	state VARCHAR(32) NOT NULL, 
	reason VARCHAR(64), 
	message TEXT, 
	created_at DOUBLE NOT NULL, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	tags JSON NOT NULL, 
	total_steps BIGINT, 
	owner VARCHAR(253), 
	CONSTRAINT pk_runs PRIMARY KEY (run_id)
);
INSERT INTO "runs" VALUES('r1','job','default','{"a": [1, null]}',NULL,'Succeeded',NULL,NULL,1.0,1.0,NULL,'{"seed": "0"}',60,NULL);
INSERT INTO "runs" VALUES('r2','job','default','{"a": [1, null]}',NULL,'Running',NULL,NULL,2.0,2.0,NULL,'{"seed": "0"}',60,NULL);
CREATE TABLE samples (
	run_id VARCHAR(128) NOT NULL, 
	step BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	rows INTEGER NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	ts DOUBLE NOT NULL, 
	CONSTRAINT pk_samples PRIMARY KEY (run_id, step, attempt)
);
INSERT INTO "samples" VALUES('r1',40,1,'r1/samples/x.parquet',16,1234,1.0);
CREATE INDEX ix_runs_namespace_name ON runs (namespace, name);
CREATE INDEX ix_runs_created_at ON runs (created_at);
CREATE INDEX ix_events_run_id_ts ON events (run_id, ts);
CREATE INDEX ix_evaluations_run_id ON evaluations (run_id);
COMMIT;
