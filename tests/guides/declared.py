"""Each block of code of a page: by what test it is run, or why by none; found by page and by how it begins."""

from __future__ import annotations

from tests.guides.blocks import Block, Bound, Elsewhere, Ran, Shown, Typed, Way

DRAWING = Shown("a drawing or a map, not a program")
FORMAT = Shown("the layout of a file, held by the tests of its codec")

DECLARED: dict[str, dict[str, Way]] = {
    "README.md": {
        "flowchart": DRAWING,
        "$ make demo": Elsewhere("tests/cli/demo/test_story.py::test_the_demo_ends_with_a_table_that_equals_the_node"),
        "kill -9 in the middle": Shown("the end of what one demo printed"),
        "$ make test": Shown("this very run"),
        "$ pip install .": Typed(),
        "$ headwater set greeting": Typed(),
        "from headwater import client": Elsewhere("tests/test_readme.py::test_a_block_of_the_readme_runs"),
        "from headwater import testing": Elsewhere("tests/test_readme.py::test_a_block_of_the_readme_runs"),
        "from pyspark.sql": Elsewhere("tests/test_readme.py::test_the_spark_block_of_the_readme_shows_a_table"),
    },
    "docs/architecture.md": {
        "src/headwater/": Elsewhere("tests/test_docs.py::test_the_map_of_the_architecture_names_every_package"),
        "reporting, process": DRAWING,
        "sequenceDiagram": DRAWING,
    },
    "docs/states.md": {"stateDiagram-v2": DRAWING},
    "docs/storage.md": {"": FORMAT},
    "docs/tutorial.md": {"$ python3 -m venv": Elsewhere("tools/install_test.py"), "$": Typed()},
    "docs/howto/auto-cdc.md": {
        "name: orders": Elsewhere(
            "tests/harness/auto_cdc/test_spark.py::test_the_program_has_ten_lines_and_is_the_one_of_the_guide"
        ),
        "from pyspark import pipelines": Elsewhere(
            "tests/harness/auto_cdc/test_spark.py::test_the_program_defines_two_flows_with_columns_of_the_source"
        ),
    },
    "docs/howto/backup.md": {
        "headwater backup create ./backups --node": Typed(),
        "select key, value": Typed(),
        "export AWS": Typed(),
        "headwater backup restore": Elsewhere("tests/backup/test_collections.py"),
        "20261122T154254Z-increment": Shown("what a backup printed after a failover"),
        "headwater seqnos": Typed(),
        "*/15 * * * *": Shown("lines of cron"),
    },
    "docs/howto/buckets.md": {"headwater bucket": Typed()},
    "docs/howto/clients.md": {
        "from datetime": Elsewhere(
            "tests/interop/test_couchbase_sdk.py::test_the_snippet_of_the_guide_runs_as_often_as_one_likes"
        ),
        "import com.couchbase.client.core": Elsewhere(
            "tests/interop/test_guide.py::test_the_java_program_stores_and_reads"
        ),
        "import com.couchbase.client.dcp": Elsewhere("tests/interop/test_guide.py::test_the_java_program_follows"),
        "const couchbase": Elsewhere("tests/interop/test_guide.py::test_the_node_program_stores_and_reads"),
        'package main\n\nimport (\n\t"fmt"\n\t"time"': Elsewhere(
            "tests/interop/test_guide.py::test_the_go_program_stores_and_reads"
        ),
        'package main\n\nimport (\n\t"fmt"\n\n\t"github.com/Trendyol': Elsewhere(
            "tests/interop/test_guide.py::test_the_go_program_follows"
        ),
        "from pymemcache": Elsewhere("tests/interop/test_guide.py::test_the_program_for_memcached_stores_and_reads"),
    },
    "docs/howto/cluster.md": {
        "$ headwater serve": Typed(),
        "$ headwater cluster init": Typed(),
        "$ headwater cluster status": Typed(),
        "$ headwater cluster rebalance": Typed(),
        "$ headwater cluster failover": Typed(),
        "headwater cluster rebalance": Elsewhere(
            "tests/cluster/test_failover_nodes.py::test_a_member_that_comes_back_empty_takes_no_client_away_from_the_others"
        ),
        "headwater cluster failover": Elsewhere(
            "tests/cluster/test_failover_nodes.py::"
            "test_replicas_do_not_follow_a_member_that_comes_back_without_its_disk_and_owns_everything"
        ),
    },
    "docs/howto/collections.md": {
        "headwater collection create": Typed(),
        "headwater collection drop": Typed(),
        "from headwater import client": Typed(),
        "headwater set": Typed(),
        "manager = bucket.collections()": Elsewhere(
            "tests/interop/test_couchbase_sdk.py::test_scopes_and_collections_are_made_used_listed_and_dropped"
        ),
    },
    "docs/howto/configure.md": {
        "# What stands at the top": Elsewhere("tests/cli/test_config.py::test_the_file_of_the_guide_is_well"),
        "$ headwater config": Elsewhere("tests/cli/test_config.py"),
        "[profiles.production]": Elsewhere("tests/cli/test_config.py::test_the_file_of_the_guide_is_well"),
        "$ headwater --config ./clients.toml": Elsewhere("tests/cli/test_profiles.py"),
        "$ headwater --install-completion": Elsewhere("tests/cli/test_completion.py"),
    },
    "docs/howto/container.md": {
        "": Shown("a container engine and Kubernetes, which tests do not need; tests/test_deploy.py reads the files"),
    },
    "docs/howto/durable-writes.md": {
        "from headwater import client": Ran(),
        "headwater set": Elsewhere("tests/cli/test_set.py::test_a_document_can_be_stored_on_a_majority_of_its_copies"),
    },
    "docs/howto/traces.md": {
        "export OTEL": Elsewhere("tests/test_tracing.py::test_a_command_sends_its_spans_where_the_environment_says"),
        "receivers:": Shown("a file of OpenTelemetry's collector, which is not here"),
        "from opentelemetry": Elsewhere("tests/tracing.py"),
    },
    "docs/howto/upgrade.md": {
        "$ headwater backup": Shown("systemd and another release; tests/faults/test_upgrade.py has stores"),
        "$ systemd-run": Shown("a service of systemd"),
        "$ ln": Shown("a service of systemd on each machine"),
    },
    "docs/howto/console.md": {
        "$ headwater console": Elsewhere("tests/cli/test_console.py"),
        "$ ssh": Shown("a tunnel of ssh"),
    },
    "docs/howto/copy.md": {
        "headwater copy": Typed(),
        "from headwater.pipelines.jobs": Bound(("headwater.pipelines.jobs.BucketCopy",)),
    },
    "docs/howto/iceberg.md": {
        "pip install": Typed(),
        "from pyiceberg": Typed(),
        "SELECT key": Typed(),
        "SELECT _row_id": Typed(),
        "headwater mirror": Typed(),
        "export PYICEBERG": Typed(),
    },
    "docs/howto/install.md": {"$ pip install .": Elsewhere("tools/install_test.py")},
    "docs/howto/index.md": {
        "headwater": Elsewhere("tests/cli/test_index.py"),
        "from headwater.pipelines.jobs": Bound(("headwater.pipelines.jobs.TextIndex",)),
    },
    "docs/howto/invalidate.md": {
        "headwater": Typed(),
        "from headwater.pipelines.jobs": Bound(("headwater.pipelines.jobs.Invalidation",)),
    },
    "docs/howto/load.md": {"headwater": Typed()},
    "docs/howto/publish.md": {
        "headwater publish": Elsewhere("tests/pipelines/test_publish.py::test_the_commands_of_the_guide"),
        '{"before": null': Elsewhere("tests/pipelines/test_envelopes.py::test_the_envelope_is_debeziums"),
        "# sink.properties": Elsewhere(
            "tests/interop/debezium_jdbc/test_table.py::test_debeziums_jdbc_sink_keeps_a_table_equal_to_the_bucket"
        ),
        "# of the worker": Elsewhere(
            "tests/interop/debezium_jdbc/test_table.py::test_debeziums_jdbc_sink_keeps_a_table_equal_to_the_bucket"
        ),
        "# kafka.properties": Elsewhere("tests/pipelines/test_kafka.py::test_properties_come_from_a_file_too"),
        "from headwater.pipelines.jobs": Bound(("headwater.pipelines.jobs.Publish",)),
    },
    "docs/howto/mirror.md": {
        "SELECT key, CAST(before.value": Elsewhere(
            "tests/pipelines/test_changelog_versions.py::test_the_query_of_the_guide_shows_what_documents_were"
        ),
        "headwater mirror": Typed(),
        "headwater mirror couchbase://127.0.0.1:11210/default --table": Elsewhere("tests/pipelines/test_catalog.py"),
        "export AWS": Elsewhere("tests/pipelines/test_objects.py"),
        "SELECT c.*": Typed(),
        "CREATE TABLE": Elsewhere(
            "tests/pipelines/test_catalog.py::test_the_table_of_a_collection_gets_a_name_as_any_other"
        ),
        "SELECT key, variant_get": Elsewhere("tests/pipelines/test_mirror.py::test_the_queries_of_the_guide"),
        "SELECT key, document.": Elsewhere(
            "tests/lake/test_readers.py::test_duckdb_takes_the_guides_query_of_a_variant"
        ),
        "from headwater.lake.history": Elsewhere("tests/pipelines/test_mirror.py::test_the_queries_of_the_guide"),
        "start node A": Elsewhere("tests/cli/demo/test_failover.py"),
        "headwater lake": Typed(),
        "from headwater.pipelines.mirror": Bound(
            ("headwater.pipelines.mirror.mirror", "headwater.pipelines.session.local_session")
        ),
    },
    "docs/howto/move.md": {"import asyncio": Ran()},
    "docs/howto/observe.md": {
        "headwater observe": Elsewhere("tests/cli/test_observe.py"),
        "from headwater.pipelines.jobs": Bound(("headwater.pipelines.jobs.Observer",)),
    },
    "docs/howto/operate.md": {
        "host =": Typed(),
        "$ headwater serve --workers 4": Elsewhere("tests/node/workers/test_supervising.py"),
        "$ headwater serve --workers 6": Elsewhere("tests/node/workers/test_resizing.py"),
        "python3 -m venv": Shown("systemd's own commands; the unit itself is verified by tests/test_deploy.py"),
        "scrape_configs": Typed(),
        "headwater streams": Elsewhere("tests/cli/test_streams.py"),
    },
    "docs/howto/own-job.md": {"": Elsewhere("tests/cli/test_guests.py")},
    "docs/howto/read-changes.md": {"": Ran()},
    "docs/howto/sans-io.md": {"": Elsewhere("tests/test_sans_io.py")},
    "docs/howto/schedule.md": {
        "PATH=/usr/local/bin": Shown("lines of cron"),
        "install -m 644 deploy/systemd": Shown(
            "systemd's own commands; the units are verified by tests/test_deploy.py"
        ),
        "airflow": Shown("Airflow's own command; the file is held by tests/test_deploy.py"),
        "install -m 644 deploy/logrotate": Shown("logrotate's own commands; the file is held by tests/test_deploy.py"),
    },
    "docs/howto/spark-cluster.md": {
        "import": Elsewhere("tests/pipelines/test_spark_cluster.py"),
        "python3 -m venv": Elsewhere("tests/pipelines/test_spark_cluster.py"),
        "export PYSPARK": Elsewhere("tests/pipelines/test_spark_cluster.py"),
        "spark-submit --master yarn": Elsewhere("tests/pipelines/test_spark_cluster.py"),
        "PYSPARK_PYTHON=": Elsewhere("tests/pipelines/test_spark_cluster.py"),
        "export SPARK_HOME": Elsewhere("tests/pipelines/test_spark_cluster.py"),
        "": Shown("Kubernetes, of which the page says what was tried"),
    },
    "docs/howto/spark.md": {"": Ran(), "headwater: 127.0.0.1": Shown("the line of an error: tests/test_first_line.py")},
    "docs/howto/tap.md": {
        "from headwater.client import tap": Bound(("headwater.client.tap.connect",)),
        "from headwater.client.routing": Bound(("headwater.client.tapnodes.TapNodes",)),
        "from headwater import client": Bound(
            ("headwater.client.tap.connect", "headwater.client.connect", "headwater.client.tap.relay")
        ),
    },
    "docs/howto/testing.md": {
        "def test_a_cart": Elsewhere("tests/test_pytest_plugin.py"),
        "": Elsewhere("tests/testing/test_node_guide.py::test_a_block_of_the_guide_runs"),
    },
    "docs/howto/tls.md": {
        "$ headwater tls": Typed(),
        "$ export HEADWATER_NODE": Typed(),
        "$ headwater serve": Typed(),
        "$ headwater cluster init": Shown("two machines with names; tests/cluster/test_encryption.py does it"),
    },
    "docs/howto/transition.md": {
        "headwater transition": Elsewhere("tests/cli/test_transition.py"),
        "batch 1:": Elsewhere("tests/cli/test_transition.py"),
        "SELECT target": Elsewhere("tests/cli/test_transition.py"),
        "from headwater.pipelines.jobs": Bound(("headwater.pipelines.jobs.Transition",)),
    },
    "docs/howto/users.md": {
        "$ headwater user add ann": Typed(),
        "$ headwater user add app": Typed(),
        "$ head -c": Typed(),
    },
}


def way(block: Block) -> Way | None:
    """Return what becomes of a block: the declaration with the longest beginning that fits."""
    fitting = [begins for begins in DECLARED.get(block.page, {}) if block.text.startswith(begins)]
    return DECLARED[block.page][max(fitting, key=len)] if fitting else None
