"""Object stores: `s3://` through boto3, `gs://` through Google's client, `hf://`, other schemes through Beam."""
