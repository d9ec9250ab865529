"""The jobs that run a pipeline, one per module: a frozen config, `define_pipeline(root, config)`, and a function.

    from rlds_beam.pipelines.convert import ConvertConfig, convert

`rlds_to_trajectories` and `rlds_to_reverb` are whole pipelines on one screen each, made of public transforms.
"""
