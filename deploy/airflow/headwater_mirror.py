"""A DAG of Airflow 3: each quarter of an hour what changed goes into the table, and once a day old files go.

Set HEADWATER_CONFIG (the user, and where the password's file is) in the workers' environment, and the names below.
"""

from datetime import timedelta

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

BUCKET = "couchbase://10.0.0.7:11210/orders"
TABLE = "/var/lib/headwater/lake/orders"
BEGIN = pendulum.datetime(2026, 1, 1, tz="UTC")
# A run that fails is tried again, and goes on where the table stands. One that takes long is not overtaken by the next.
ALWAYS = {"retries": 3, "retry_delay": timedelta(minutes=2), "execution_timeout": timedelta(hours=1)}

with DAG(
    "headwater_mirror", schedule="*/15 * * * *", start_date=BEGIN, catchup=False, max_active_runs=1, default_args=ALWAYS
):
    BashOperator(task_id="mirror", bash_command=f"headwater mirror {BUCKET} --to {TABLE} --engine local --once")

with DAG(
    "headwater_vacuum", schedule="@daily", start_date=BEGIN, catchup=False, max_active_runs=1, default_args=ALWAYS
):
    BashOperator(task_id="vacuum", bash_command=f"headwater lake vacuum {TABLE} --older-than 7d")
