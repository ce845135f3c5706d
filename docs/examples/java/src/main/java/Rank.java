import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.util.List;
import java.util.concurrent.TimeUnit;
import ranking.v1.RankingGrpc;
import ranking.v1.RankingOuterClass.RankRequest;
import ranking.v1.RankingOuterClass.RankResponse;
import ranking.v1.RankingOuterClass.RankedDocument;

public class Rank {
    public static void main(String[] arguments) throws Exception {
        List<String> documents =
                List.of("Paris is the capital of France.", "Rain falls from clouds.", "France has many rivers.");
        String target = System.getenv().getOrDefault("EMBED_TARGET", "localhost:50051");
        ManagedChannel channel = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create()).build();
        RankRequest request = RankRequest.newBuilder()
                .setModel("ranker")
                .setQuery("what is the capital of France")
                .addAllDocuments(documents)
                .setTopN(2)
                .build();
        RankResponse answer =
                RankingGrpc.newBlockingStub(channel).withDeadlineAfter(10, TimeUnit.SECONDS).rank(request);
        for (RankedDocument found : answer.getResultsList()) {
            String document = documents.get(found.getIndex());
            if (found.getStatus().getCode() != 0) {
                System.out.printf("%s has no score: %s%n", document, found.getStatus().getMessage());
            } else {
                System.out.printf("%.3f %s%n", found.getScore(), document);
            }
        }
        System.out.println("ranked: " + answer.getResultsCount());
        channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
    }
}
