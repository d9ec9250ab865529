"""The jobs that run on a runner, one per module: a frozen config, and a function that runs the job.

    from rlds_beam.pipelines.convert import ConvertConfig, convert

`rlds_to_trajectories` and `rlds_to_reverb` are whole pipelines on one screen each, made of public transforms.
"""
