import generation.v1.GenerationGrpc;
import generation.v1.GenerationOuterClass.GenerateRequest;
import generation.v1.GenerationOuterClass.GenerateResponse;
import generation.v1.GenerationOuterClass.Sampling;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.util.Iterator;
import java.util.concurrent.TimeUnit;

public class Generate {
    public static void main(String[] arguments) throws Exception {
        String target = System.getenv().getOrDefault("EMBED_TARGET", "localhost:50051");
        ManagedChannel channel = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create()).build();
        GenerateRequest request = GenerateRequest.newBuilder()
                .setModel("smollm2-135m-instruct")
                .setPrompt("The capital of France is")
                .setSampling(Sampling.newBuilder().setMaxTokens(20).setTemperature(0))
                .build();
        Iterator<GenerateResponse> responses =
                GenerationGrpc.newBlockingStub(channel).withDeadlineAfter(60, TimeUnit.SECONDS).generate(request);
        int tokens = 0;
        while (responses.hasNext()) {
            GenerateResponse response = responses.next();
            System.out.print(response.getText());
            tokens = response.getUsage().getCompletionTokens();
        }
        System.out.println("\ntokens: " + tokens);
        channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
    }
}
