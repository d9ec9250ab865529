"""Object stores: `s3://` through boto3, `gs://` through Google's client, other schemes through Beam."""
