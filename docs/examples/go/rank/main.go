package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "example.com/client/ranking"
)

func main() {
	target, named := os.LookupEnv("EMBED_TARGET")
	if !named {
		target = "localhost:50051"
	}
	connection, err := grpc.Dial(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	documents := []string{"Paris is the capital of France.", "Rain falls from clouds.", "France has many rivers."}
	answer, err := pb.NewRankingClient(connection).Rank(ctx, &pb.RankRequest{
		Model:     "ranker",
		Query:     "what is the capital of France",
		Documents: documents,
		TopN:      2,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, found := range answer.Results {
		if found.Status.GetCode() != 0 {
			fmt.Printf("%q has no score: %s\n", documents[found.Index], found.Status.Message)
			continue
		}
		fmt.Printf("%.3f %s\n", found.Score, documents[found.Index])
	}
	fmt.Println("ranked:", len(answer.Results))
}
