import org.apache.beam.runners.flink.FlinkJobServerDriver;
import org.apache.beam.sdk.io.FileSystems;
import org.apache.beam.sdk.options.PipelineOptionsFactory;

/** FlinkJobServerDriver's main, without its line about Google Cloud Storage, whose jars are not here. */
public final class JobServer {
  public static void main(String[] args) throws Exception {
    FileSystems.setDefaultPipelineOptions(PipelineOptionsFactory.create());
    FlinkJobServerDriver.fromParams(args).run();
  }
}
